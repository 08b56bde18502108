// tq top: one coroutine talks to the server, another one takes keys, so the screen answers while a statement waits.
#include "command.hpp"
#include "screen.hpp"
#include "text.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio.hpp>

#include <clocale>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

namespace cli
{

namespace
{

namespace asio = boost::asio;

const std::vector<std::string> kHelp = {
	"Tab, left, right   go to the next panel: queues, running jobs, workers",
	"up, down, k, j     select a line; also Page up, Page down, Home, End",
	"Enter              look at the selected queue, job or worker",
	"p                  pause the selected queue, or end its pause",
	"d                  drain the selected worker, or end that",
	"c                  cancel the selected job, after a question",
	"q                  end",
	"",
	"IN/s and OUT/s count jobs that were enqueued and that ended, since the screen before.",
	"READY are the jobs that can start; LATER those that are delayed or blocked.",
	"OLDEST says how long the oldest ready job has been ready. It needs the right metrics.",
	"WAIT and RUN are percentiles of waits and attempts, of the last 5 minutes.",
	"MINUTES shows the jobs claimed in each of the last minutes, the latest last.",
	"LEASE is the time until the job's lease ends, unless its worker renews it.",
};

// What a key asks of the server.
struct Order
{
	Order(tq::Statement what, std::string text) : statement(std::move(what)), name(std::move(text)) {}
	tq::Statement statement; // with a column "outcome"
	std::string name;		 // for people
};

// The row of a queue, a job or a worker, a line for each column.
struct Look
{
	Look(tq::Statement what, std::string name) : statement(std::move(what)), title(std::move(name)) {}
	tq::Statement statement;
	std::string title;
	std::vector<std::string> text{"..."};
	int top = 0;
};

tq::Statement with_name(const char *sql, const std::string &name) { return tq::Statement(sql, tq::values(name)); }

std::string first_line(const std::string &text) { return text.substr(0, text.find('\n')); }

// Without libpq's "connection to server on socket ... failed: ", which may fill the line.
std::string cause_of(const tq::Error &error)
{
	const std::string text = first_line(error.what()), before = " failed: ";
	const std::size_t at = text.find(before);
	return at == std::string::npos ? text : text.substr(at + before.size());
}

class Top
{
public:
	Top(const Global &global, tq::Duration interval)
		: global_(global), interval_(interval), timer_(io_), keys_(io_, ::dup(STDIN_FILENO)),
		  signals_(io_, SIGINT, SIGTERM, SIGHUP), resizes_(io_, SIGWINCH)
	{}

	int run()
	{
		const auto ended = [this](std::exception_ptr error) {
			failure_ = failure_ ? failure_ : error;
			io_.stop();
		};
		asio::co_spawn(io_, follow(), ended);
		asio::co_spawn(io_, take_keys(), ended);
		signals_.async_wait([this](boost::system::error_code, int) { io_.stop(); });
		await_resize();
		show();
		io_.run();
		if (failure_)
			std::rethrow_exception(failure_);
		return 0;
	}

private:
	void await_resize()
	{
		resizes_.async_wait([this](boost::system::error_code error, int) {
			if (error)
				return;
			screen_.resize();
			show();
			await_resize();
		});
	}

	void show()
	{
		const int width = screen_.width(), height = screen_.height();
		if (help_)
			screen_.show(draw_text("tq top: keys and columns", kHelp, help_top_, width, height));
		else if (look_)
			screen_.show(draw_text(look_->title, look_->text, look_->top, width, height));
		else
			screen_.show(draw(reading_, view_, width, height));
	}

	tq::Task<> follow()
	{
		for (bool connected = false;;)
		{
			std::string lost;
			try
			{
				co_await read();
				connected = true;
			}
			catch (const tq::Error &error)
			{
				if (!connected)
					throw;
				lost = cause_of(error);
				connection_.close();
			}
			view_.lost = lost;
			show();
			if (!hurry_ || !lost.empty())
			{
				boost::system::error_code woken;
				timer_.expires_after(interval_);
				co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
			}
			hurry_ = false;
		}
	}

	tq::Task<> read()
	{
		if (!connection_.is_open())
		{
			connection_ = co_await connect(global_);
			connection_.on_notice([this](const std::string &text) { say(first_line(text)); });
		}
		while (!orders_.empty())
		{
			const Order order = std::move(orders_.front());
			orders_.pop_front();
			say("lost the connection while this was done: " + order.name, true); // until there is an answer
			co_await obey(order);
		}
		reader_.watch(queues_on_screen());
		reading_ = co_await reader_.read(connection_);
		const std::shared_ptr<Look> look = look_;
		if (look)
			co_await fill(*look);
	}

	tq::Task<> obey(const Order &order)
	{
		std::vector<tq::Statement> statements(1, order.statement);
		const std::vector<tq::Reply> replies = co_await connection_.pipeline(std::move(statements));
		if (const auto *refused = std::get_if<tq::Error>(&replies[0]))
			say(refused->what(), true);
		else
			say(order.name + ": " + std::string(std::get<tq::Result>(replies[0]).text(0, "outcome")));
	}

	tq::Task<> fill(Look &look)
	{
		std::vector<tq::Statement> statements(1, look.statement);
		const std::vector<tq::Reply> replies = co_await connection_.pipeline(std::move(statements));
		look.text.clear();
		if (const auto *refused = std::get_if<tq::Error>(&replies[0]))
		{
			look.text = {refused->what()};
			co_return;
		}
		const tq::Result &rows = std::get<tq::Result>(replies[0]);
		for (int column = 0; rows.rows() > 0 && column < rows.columns(); ++column)
			if (!rows.null(0, column))
				look.text.push_back(std::string(rows.column_name(column)) + ": " + std::string(rows.text(0, column)));
		if (look.text.empty())
			look.text = {"it is gone"};
	}

	std::vector<std::string> queues_on_screen() const
	{
		std::vector<std::string> names;
		const std::size_t from = std::size_t(view_.places[kQueuePanel].top);
		for (std::size_t i = from; i < reading_.queues.size() && i < from + std::size_t(screen_.height()); ++i)
			names.push_back(reading_.queues[i].name);
		return names;
	}

	tq::Task<> take_keys()
	{
		for (;;)
		{
			co_await keys_.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
			int waiting = 0;
			if (ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting == 0)
				co_return; // the terminal is gone
			for (int key = screen_.key(); key != kNoKey; key = screen_.key())
				if (!press(key))
					co_return;
			show();
		}
	}

	// False: the end.
	bool press(int key)
	{
		if (help_ || look_)
		{
			scroll(help_ ? help_top_ : look_->top, key);
			if (key == 'q' || key == kBack || key == kEnter || key == '?')
				help_ ? void(help_ = false) : look_.reset();
			return true;
		}
		view_.message.clear();
		if (question_)
		{
			if (key == 'y')
				order(std::move(*question_));
			else
				say("nothing is cancelled");
			question_.reset();
			view_.question.clear();
			return true;
		}
		switch (key)
		{
			case 'q':
				return false;
			case '?':
				help_ = true;
				help_top_ = 0;
				break;
			case kNextPanel:
				view_.focus = Panel((view_.focus + 1) % kPanels);
				break;
			case kPreviousPanel:
				view_.focus = Panel((view_.focus + kPanels - 1) % kPanels);
				break;
			case kEnter:
				look_at_selected();
				break;
			case 'p':
				pause_or_resume();
				break;
			case 'd':
				drain_or_undrain();
				break;
			case 'c':
				ask_to_cancel();
				break;
			default:
				move(key);
				break;
		}
		return true;
	}

	void scroll(int &line, int key) const
	{
		const int page = std::max(screen_.height() - 2, 1);
		if (key == kUp || key == kDown)
			line += key == kUp ? -1 : 1;
		else if (key == kPageUp || key == kPageDown)
			line += key == kPageUp ? -page : page;
		else if (key == kFirst)
			line = 0;
		else if (key == kLast)
			line = 1 << 20; // what is drawn has an end
	}

	void move(int key)
	{
		View::Place &place = view_.places[view_.focus];
		const int before = place.at;
		scroll(place.at, key);
		if (place.at != before)
			place.selected.clear(); // the position counts
	}

	// Of the panel with the focus, which must be this one.
	template <class Lines>
	const typename Lines::value_type *selected(const Lines &lines, Panel panel, const char *what)
	{
		const std::size_t at = std::size_t(std::max(view_.places[panel].at, 0));
		if (view_.focus == panel && at < lines.size())
			return &lines[at];
		say(std::string("select a ") + what + " first (Tab goes to the next panel)", true);
		return nullptr;
	}

	void pause_or_resume()
	{
		const QueueLine *queue = selected(reading_.queues, kQueuePanel, "queue");
		if (queue && queue->paused)
			order({with_name("SELECT 'done' AS outcome FROM tq_resume($1)", queue->name),
				   "end the pause of queue " + queue->name});
		else if (queue)
			order({with_name("SELECT 'done' AS outcome FROM tq_pause($1)", queue->name), "pause queue " + queue->name});
	}

	void drain_or_undrain()
	{
		const WorkerLine *worker = selected(reading_.workers, kWorkerPanel, "worker");
		if (worker && worker->draining)
			order({with_name("SELECT 'done' AS outcome FROM tq_undrain($1)", worker->name),
				   "end the drain of worker " + worker->name});
		else if (worker)
			order({with_name("SELECT d || ' jobs left' AS outcome FROM tq_drain($1) d", worker->name),
				   "drain worker " + worker->name});
	}

	void ask_to_cancel()
	{
		const JobLine *job = selected(reading_.jobs, kJobPanel, "job");
		if (!job)
			return;
		const std::string id = std::to_string(job->id);
		question_.emplace(with_name("SELECT tq_cancel($1::bigint) AS outcome", id), "cancel job " + id);
		view_.question = "Cancel job " + id + " of queue " + job->queue + "? (y/n)";
	}

	void look_at_selected()
	{
		if (view_.focus == kQueuePanel)
		{
			if (const QueueLine *queue = selected(reading_.queues, kQueuePanel, "queue"))
				look_ = std::make_shared<Look>(with_name("SELECT * FROM tq_queues WHERE queue = $1", queue->name),
											   "queue " + queue->name);
		}
		else if (view_.focus == kWorkerPanel)
		{
			if (const WorkerLine *worker = selected(reading_.workers, kWorkerPanel, "worker"))
				look_ = std::make_shared<Look>(with_name("SELECT * FROM tq_workers WHERE worker = $1", worker->name),
											   "worker " + worker->name);
		}
		else if (const JobLine *job = selected(reading_.jobs, kJobPanel, "job"))
			look_ = std::make_shared<Look>(
				with_name("SELECT tq_explain(id) AS explanation, id, queue, kind, state, priority, attempt, "
						  "max_attempts, run_at, "
						  "enqueued_at, claimed_at, finished_at, worker, lease, lease_expires_at, left(payload::text, "
						  "4000) AS payload, "
						  "left(headers::text, 4000) AS headers, left(result::text, 4000) AS result, error, "
						  "left(checkpoint::text, 4000) AS checkpoint, group_key, unique_key, tags, policies "
						  "FROM tq_get($1::bigint)",
						  std::to_string(job->id)),
				"job " + std::to_string(job->id));
		hurry();
	}

	void order(Order what)
	{
		orders_.push_back(std::move(what));
		hurry();
	}

	void hurry()
	{
		hurry_ = true;
		timer_.cancel();
	}

	void say(std::string text, bool failed = false)
	{
		view_.message = std::move(text);
		view_.failed = failed;
	}

	const Global &global_;
	tq::Duration interval_;
	asio::io_context io_{1};
	asio::steady_timer timer_;
	asio::posix::stream_descriptor keys_;
	asio::signal_set signals_, resizes_;
	Screen screen_;
	tq::Connection connection_;
	Reader reader_;
	Reading reading_;
	View view_;
	std::deque<Order> orders_;
	std::optional<Order> question_;
	std::shared_ptr<Look> look_;
	bool help_ = false, hurry_ = true; // the first screen lacks the series of its queues
	int help_top_ = 0;
	std::exception_ptr failure_;
};

// Two readings, so that there are rates.
tq::Task<int> print_once(Global global, tq::Duration interval, int width)
{
	tq::Connection connection = co_await connect(global);
	if (global.json)
	{
		std::cout << co_await reading_as_json(connection) << "\n";
		co_return 0;
	}
	Reader reader;
	Reading reading = co_await reader.read(connection);
	std::vector<std::string> names;
	for (const QueueLine &queue : reading.queues)
		names.push_back(queue.name);
	reader.watch(std::move(names));
	asio::steady_timer timer(co_await asio::this_coro::executor, interval);
	co_await timer.async_wait(asio::use_awaitable);
	reading = co_await reader.read(connection);
	for (Line &line : draw_all(reading, width))
	{
		line.text.erase(line.text.find_last_not_of(' ') + 1);
		std::cout << line.text << "\n";
	}
	co_return reading.queues_error.empty() && reading.jobs_error.empty() ? 0 : 1;
}

// Of the terminal, if there is one.
int columns_of_output()
{
	winsize size{};
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		return size.ws_col;
	const char *columns = std::getenv("COLUMNS");
	const int width = columns ? std::atoi(columns) : 0;
	return width > 0 ? std::min(width, 1000) : 80;
}

} // namespace

void add_top(CLI::App &app, const Global &global, Action &action)
{
	struct Arguments
	{
		std::string interval = "1s";
		bool once = false;
	};
	auto given = std::make_shared<Arguments>();
	CLI::App *sub = add_path(app, "top", "Watch queues, running jobs and workers on the whole screen", "--interval 2s");
	sub->add_option("--interval", given->interval, "from one screen to the next")
		->type_name("LENGTH")
		->capture_default_str();
	sub->add_flag("--once", given->once, "print one screen and end, as without a terminal");
	sub->callback([given, &global, &action] {
		action = [given, &global] {
			const tq::Duration interval = parse_duration(given->interval);
			if (interval < std::chrono::milliseconds(100))
				throw std::invalid_argument("--interval must be at least 100ms");
			std::setlocale(LC_CTYPE, "");
			if (given->once || global.json || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
				return tq::run(print_once(global, interval, columns_of_output()));
			return Top(global, interval).run();
		};
	});
}

} // namespace cli
