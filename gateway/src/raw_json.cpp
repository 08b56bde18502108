#include "raw_json.hpp"

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>

#include <optional>
#include <set>

namespace json = boost::json;

namespace gateway
{

namespace
{

// Writes down what the parser reads. The values one level below the top are the parts.
struct Splitter
{
	static constexpr std::size_t max_object_size = std::size_t(-1), max_array_size = std::size_t(-1);
	static constexpr std::size_t max_key_size = std::size_t(-1), max_string_size = std::size_t(-1);
	using Code = json::error_code;

	std::vector<std::pair<std::string, Raw>> parts;
	std::optional<Raw::Kind> top;

	bool on_document_begin(Code &) { return true; }
	bool on_document_end(Code &) { return true; }
	bool on_object_begin(Code &) { return open(Raw::kObject, '{'); }
	bool on_object_end(std::size_t, Code &) { return close('}'); }
	bool on_array_begin(Code &) { return open(Raw::kArray, '['); }
	bool on_array_end(std::size_t, Code &) { return close(']'); }
	bool on_key_part(json::string_view text, std::size_t, Code &) { return add(text); }
	bool on_key(json::string_view text, std::size_t, Code &)
	{
		add(text);
		if (empty_.size() == 1)
			name_ = std::move(gathered_);
		else
		{
			comma();
			parts.back().second.text += quoted(gathered_) + ":";
			after_key_ = true;
		}
		gathered_.clear();
		return true;
	}
	bool on_string_part(json::string_view text, std::size_t, Code &) { return add(text); }
	bool on_string(json::string_view text, std::size_t, Code &)
	{
		add(text);
		Raw *part = begin(Raw::kString);
		if (part)
			part->text += quoted(gathered_);
		if (part && empty_.size() == 1)
			part->string = std::move(gathered_);
		gathered_.clear();
		return true;
	}
	bool on_number_part(json::string_view text, Code &) { return add(text); }
	bool on_int64(std::int64_t, json::string_view text, Code &) { return number(text); }
	bool on_uint64(std::uint64_t, json::string_view text, Code &) { return number(text); }
	bool on_double(double, json::string_view text, Code &) { return number(text); }
	bool on_bool(bool flag, Code &) { return scalar(Raw::kBool, flag ? "true" : "false"); }
	bool on_null(Code &) { return scalar(Raw::kNull, "null"); }
	bool on_comment_part(json::string_view, Code &) { return true; }
	bool on_comment(json::string_view, Code &) { return true; }

private:
	bool add(json::string_view text)
	{
		gathered_.append(text.data(), text.size());
		return true;
	}

	bool number(json::string_view text)
	{
		add(text);
		const std::string digits = std::move(gathered_);
		gathered_.clear();
		return scalar(Raw::kNumber, digits);
	}

	bool scalar(Raw::Kind kind, const std::string &text)
	{
		if (Raw *part = begin(kind))
			part->text += text;
		return true;
	}

	bool open(Raw::Kind kind, char bracket)
	{
		if (Raw *part = begin(kind))
			part->text += bracket;
		empty_.push_back(true);
		return true;
	}

	bool close(char bracket)
	{
		empty_.pop_back();
		if (!empty_.empty())
			parts.back().second.text += bracket;
		return true;
	}

	void comma()
	{
		if (!empty_.back())
			parts.back().second.text += ',';
		empty_.back() = false;
	}

	// The part to which a value belongs that begins here; null for the top itself.
	Raw *begin(Raw::Kind kind)
	{
		if (empty_.empty())
		{
			top = kind;
			return nullptr;
		}
		if (empty_.size() == 1)
		{
			parts.emplace_back(std::move(name_), Raw{kind, {}, {}});
			name_.clear();
		}
		else if (!after_key_)
			comma();
		after_key_ = false;
		return &parts.back().second;
	}

	std::string gathered_, name_;
	std::vector<bool> empty_; // for each open bracket: whether nothing is in it yet
	bool after_key_ = false;
};

std::vector<std::pair<std::string, Raw>> split(std::string_view text, Raw::Kind wanted, std::size_t max_depth)
{
	json::parse_options options;
	options.max_depth = max_depth;
	json::basic_parser<Splitter> parser(options);
	json::error_code error;
	const std::size_t read = parser.write_some(false, text.data(), text.size(), error);
	if (error || read < text.size())
		throw BadJson("it is not JSON: " + (error ? error.message() : "more text follows") + " after byte " +
					  std::to_string(read));
	if (parser.handler().top != wanted)
		throw BadJson(wanted == Raw::kObject ? "it is not a JSON object" : "it is not a JSON array");
	return std::move(parser.handler().parts);
}

} // namespace

std::vector<std::pair<std::string, Raw>> members_of(std::string_view object, std::size_t max_depth)
{
	auto parts = split(object, Raw::kObject, max_depth);
	std::set<std::string_view> names;
	for (const auto &[name, value] : parts)
	{
		if (!names.insert(name).second)
			throw BadJson("the field " + quoted(name) + " is given twice");
	}
	return parts;
}

std::vector<Raw> elements_of(std::string_view array, std::size_t max_depth)
{
	std::vector<Raw> elements;
	for (auto &[name, value] : split(array, Raw::kArray, max_depth))
		elements.push_back(std::move(value));
	return elements;
}

std::string quoted(std::string_view text) { return json::serialize(json::string_view(text.data(), text.size())); }

} // namespace gateway
