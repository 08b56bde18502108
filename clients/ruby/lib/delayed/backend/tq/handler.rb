# frozen_string_literal: true

module Delayed
  module Backend
    module Tq
      # The text of a job's payload object: YAML, as delayed_job writes it, or JSON. Whoever can write payloads of jobs can
      # name classes and methods there, so an application can say which ones it takes.
      module Handler
        # What `delay` of an object, and of a mailer, makes.
        PERFORMABLE = %w[Delayed::PerformableMethod Delayed::PerformableMailer].freeze
        # Classes that every handler may name: also values, and what records of ActiveRecord consist of.
        ALWAYS = PERFORMABLE + %w[
          BigDecimal Date DateTime Range Set Symbol Time
          ActiveModel::Attribute::FromDatabase ActiveModel::Attribute::FromUser ActiveModel::Attribute::WithCastValue
          ActiveSupport::HashWithIndifferentAccess ActiveSupport::TimeWithZone ActiveSupport::TimeZone
        ].freeze

        class << self
          def dump(object)
            Tq.json? ? dump_json(object) : object.to_yaml
          end

          # Raises Refused, or what the parser raises.
          def load(text)
            object = if Tq.json? then load_json(text)
                     elsif Tq.permitted_classes then Loader.load(text)
                     else YAML.load_dj(text)
                     end
            check(object) if Tq.permitted_classes && object.is_a?(PerformableMethod)
            object
          end

          def permitted?(name)
            Tq.permitted_classes.any? { |one| one.to_s == name }
          end

          # The class of this name, if the application takes it.
          def permitted(name)
            raise Refused, "class #{name} is not in permitted_classes" unless permitted?(name)

            name.constantize
          end

          private

          # Methods of Object, Class and their like run any code, so a permitted class must define the method.
          def check(performable)
            object = performable.object
            return if object.nil?

            klass = object.is_a?(Module) ? object : object.class
            raise Refused, "class #{klass} is not in permitted_classes" unless permitted?(klass.name)
            return if defined_by_permitted?(object.method(performable.method_name).owner)

            raise Refused, "no class of permitted_classes defines #{performable.display_name}"
          end

          def defined_by_permitted?(owner)
            return permitted?(owner.name) unless owner.singleton_class?

            Tq.permitted_classes.any? { |one| one.to_s.safe_constantize&.singleton_class == owner }
          end

          def dump_json(object)
            name = object.class.name
            return JSON.generate(class: name, fields: arguments.serialize([fields(object)])) unless PERFORMABLE.include?(name)

            JSON.generate(class: name, method: arguments.serialize([object.object, object.method_name.to_s, *object.args]))
          end

          def load_json(text)
            value = JSON.parse(text)
            name = value.fetch('class')
            return performable(name.constantize, *arguments.deserialize(value.fetch('method'))) if PERFORMABLE.include?(name)

            fill(permitted(name).allocate, arguments.deserialize(value.fetch('fields')).first)
          end

          def performable(klass, object, method, *args)
            klass.new(object, method, args)
          end

          def fields(object)
            return object.to_h.transform_keys(&:to_s) if object.is_a?(Struct)

            object.instance_variables.to_h { |name| [name.to_s, object.instance_variable_get(name)] }
          end

          def fill(object, values)
            values.each { |name, value| object.is_a?(Struct) ? object[name] = value : object.instance_variable_set(name, value) }
            object
          end

          def arguments
            require 'active_job'
            require 'active_job/arguments'
            ActiveJob::Arguments
          end
        end

        # A handler that the application does not take.
        class Refused < ArgumentError; end

        # Loads YAML with permitted classes only.
        class Loader < PsychExt::ToRuby
          def self.load(text)
            tree = Psych.parse(text)
            classes = Psych::ClassLoader::Restricted.new(ALWAYS + Tq.permitted_classes.map(&:to_s), [])
            tree && new(Psych::ScalarScanner.new(classes), classes).accept(tree)
          end

          def resolve_class(name)
            return if name.nil? || name.empty?

            ALWAYS.include?(name) ? name.constantize : Handler.permitted(name)
          end

          def revive(klass, node)
            super(resolve_class(klass.name), node)
          end
        end
      end
    end
  end
end
