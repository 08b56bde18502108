#!/usr/bin/env php
<?php
// A tq worker with PDO.   usage: worker.php QUEUE NAME   (and the usual PG* variables)
declare(strict_types=1);

[, $queue, $name] = $argv;
const LEASE = 3.0; // seconds; renewed after a third of it

/** A retry cannot succeed. */
class Fatal extends RuntimeException {}

final class Worker
{
    private bool $stopping = false;
    private PDO $db;

    public function __construct(private string $queue, private string $name)
    {
        pcntl_signal(SIGTERM, fn() => $this->stopping = true);
    }

    /** Signals are polled: an asynchronous signal is lost if it arrives together with an exception. */
    private function stopping(): bool
    {
        pcntl_signal_dispatch();
        return $this->stopping;
    }

    private function note(string $event, array $job, string $word): void
    {
        if ($file = getenv('WORK_LOG')) {
            $line = sprintf("%.6F %s %s %d %d %d %s\n", microtime(true), $this->name, $event, $job['id'], $job['lease'], $job['attempt'], $word);
            file_put_contents($file, $line, FILE_APPEND);
        }
    }

    /** The first row, or null. */
    private function row(string $sql, mixed ...$args): ?array
    {
        $statement = $this->db->prepare($sql);
        $statement->execute($args);
        return $statement->fetch() ?: null;
    }

    private function claim(): ?array
    {
        return $this->row("SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
            FROM tq_claim(?, worker => ?, lease_for => ? * interval '1 s', wait => '2 s')", $this->queue, $this->name, LEASE);
    }

    /** The slow work, outside any transaction; checks the lease now and then. */
    private function work(array $job, array $payload): void
    {
        if ($job['attempt'] <= ($payload['failures'] ?? 0)) {
            throw new RuntimeException('the bank does not answer');
        }
        if ($payload['amount'] <= 0) {
            throw new Fatal('nothing to book');
        }
        $renewed = microtime(true);
        $end = $renewed + ($payload['seconds'] ?? 0);
        while (($left = $end - microtime(true)) > 0) {
            usleep((int) (1e6 * min(0.05, $left)));
            if (microtime(true) - $renewed > LEASE / 3) {
                $renewed = microtime(true);
                match ($this->row('SELECT action FROM tq_heartbeat(?, ?)', $job['id'], $job['lease'])['action']) {
                    'lost', 'cancel' => throw new RuntimeException('stopped as asked'),
                    'quiet' => $this->stopping = true,
                    default => null,
                };
            }
        }
    }

    private function complete(array $job, array $payload): string
    {
        $this->note('end', $job, 'complete');
        $this->db->beginTransaction(); // both or neither
        $this->row('INSERT INTO booking VALUES (?, ?, ?, ?) RETURNING 1', $job['id'], $payload['transfer'], $payload['amount'], $this->name);
        $answer = $this->row('SELECT tq_complete(?, ?) AS state', $job['id'], $job['lease'])['state'];
        $this->db->commit();
        return $answer;
    }

    private function fail(array $job, Exception $error): string
    {
        $fatal = $error instanceof Fatal;
        $this->note('end', $job, $fatal ? 'kill' : 'fail');
        return $this->row('SELECT tq_fail(?, ?, ?, fatal => ?) AS state',
            $job['id'], $job['lease'], $error->getMessage(), $fatal ? 't' : 'f')['state'];
    }

    private function process(array $job): void
    {
        $this->note('start', $job, $job['until']);
        $payload = json_decode($job['payload'], true, flags: JSON_THROW_ON_ERROR);
        try {
            try {
                $this->work($job, $payload);
                $answer = $this->complete($job, $payload);
            } catch (Exception $error) {
                if ($this->db->inTransaction()) {
                    $this->db->rollBack(); // raises an error if the server is gone
                }
                if ($error instanceof PDOException && in_array($error->getCode(), ['TQ001', 'HY000', '57P01', '57P02'], true)) {
                    throw $error;
                }
                $answer = $this->fail($job, $error);
            }
        } catch (PDOException $error) {
            if ($error->getCode() !== 'TQ001') {
                throw $error;
            }
            $answer = 'lost'; // another worker has the job by now
        }
        $this->note('told', $job, $answer);
    }

    public function run(): void
    {
        while (!$this->stopping()) {
            try {
                $this->db = new PDO('pgsql:', options: [
                    PDO::ATTR_DEFAULT_FETCH_MODE => PDO::FETCH_ASSOC,
                    PDO::PGSQL_ATTR_DISABLE_PREPARES => true, // works behind a pooler, too
                ]);
                while (!$this->stopping()) {
                    if ($job = $this->claim()) {
                        $this->process($job);
                    }
                }
            } catch (PDOException $error) {
                // the server restarts: jobs in hand run again after their leases expire
                fwrite(STDERR, $error->getMessage() . "\n");
                usleep(200_000);
            }
        }
    }
}

(new Worker($queue, $name))->run();
