// The stream of a worker: jobs go down as credits last, what becomes of them goes up.
#pragma once

#include "calls.hpp"

#include <tq/v1/tq.grpc.pb.h>

namespace gateway
{

using WorkReactor = grpc::ServerBidiReactor<tq::v1::WorkerMessage, tq::v1::ServerMessage>;

// Deletes itself when the stream has ended.
WorkReactor *work_stream(Calls &calls, const grpc::CallbackServerContext &context);

// Claims no more for the streams, and ends each when its jobs have been finished.
void end_work_streams();

} // namespace gateway
