// A worker with libtq.   usage: worker QUEUE   (and the usual PG* variables)
//
// "square" is a coroutine with a result; "report" is a function that works for long, keeps checkpoints and stops on request.
#include <tq/tq.hpp>

#include <chrono>
#include <iostream>
#include <thread>

static tq::Task<std::string> square(tq::Job job)
{
	const int number = std::stoi(job->payload);
	co_return std::to_string(number * number);
}

static void report(tq::Job job)
{
	for (int page = std::stoi(job->checkpoint.value_or("0")); page < 10; ++page)
	{
		if (job.stop().stop_requested())
			throw tq::Release();
		std::this_thread::sleep_for(std::chrono::milliseconds(10)); // the work of a page
		job.checkpoint(std::to_string(page + 1));
		job.progress("{\"percent\": " + std::to_string(10 * (page + 1)) + "}");
	}
}

int main(int, char **arguments)
{
	tq::WorkerOptions options;
	options.queues = {arguments[1]};
	tq::Worker worker(options);
	return worker.on("square", square).on("report", report).run();
}
