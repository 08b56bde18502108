// All of libtq.
#pragma once

#include <tq/calls.hpp>
#include <tq/codec.hpp>
#include <tq/connection.hpp>
#include <tq/error.hpp>
#include <tq/manage.hpp>
#include <tq/shared.hpp>
#include <tq/utf8.hpp>
#include <tq/worker.hpp>
