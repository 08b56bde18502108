// A tq worker with lib/pq.   usage: worker QUEUE NAME   (and the usual PG* variables)
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/lib/pq"
)

const (
	atOnce = 2               // jobs
	lease  = 3 * time.Second // renewed after a third of it
)

type worker struct {
	db          *sql.DB
	queue, name string
	stopping    context.Context
	stop        context.CancelFunc
}

type job struct {
	id, lease int64
	attempt   int
	until     string
	payload   struct {
		Transfer string
		Amount   int
		Seconds  float64
		Failures int
	}
}

// errFatal: a retry cannot succeed.
var errFatal = errors.New("nothing to book")

func isLost(err error) bool {
	var said *pq.Error
	return errors.As(err, &said) && said.Code == "TQ001"
}

// serverGone: the connection broke (no server error), or the server reports its shutdown (class 57).
func serverGone(err error) bool {
	var said *pq.Error
	return !errors.As(err, &said) || said.Code.Class() == "57"
}

func (w *worker) note(event string, j *job, word string) {
	if file := os.Getenv("WORK_LOG"); file != "" {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			log.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, "%.6f %s %s %d %d %d %s\n", float64(time.Now().UnixMicro())/1e6, w.name, event, j.id, j.lease, j.attempt, word)
	}
}

// claim waits for a job. A stop request cancels the statement; a cancelled claim takes no job.
func (w *worker) claim() (*job, error) {
	var j job
	var payload []byte
	err := w.db.QueryRowContext(w.stopping, `
		SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at)
		FROM tq_claim($1, worker => $2, lease_for => $3, wait => '30 s')`, w.queue, w.name, lease.String()).
		Scan(&j.id, &j.lease, &j.attempt, &payload, &j.until)
	if err != nil {
		return nil, err
	}
	return &j, json.Unmarshal(payload, &j.payload)
}

// keepLease sends heartbeats until the work is over, and cancels the work on a stop request.
func (w *worker) keepLease(working context.Context, end context.CancelFunc, j *job) {
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-working.Done():
			return
		case <-ticker.C:
		}
		var action string
		if err := w.db.QueryRow("SELECT action FROM tq_heartbeat($1, $2)", j.id, j.lease).Scan(&action); err != nil {
			log.Print(err) // the server restarts; the next heartbeat may succeed
		}
		switch action {
		case "lost", "cancel":
			end()
		case "quiet":
			w.stop()
		}
	}
}

// work is the slow part, outside any transaction.
func (w *worker) work(j *job) error {
	if j.attempt <= j.payload.Failures {
		return errors.New("the bank does not answer")
	}
	if j.payload.Amount <= 0 {
		return errFatal
	}
	working, end := context.WithCancel(context.Background())
	defer end()
	go w.keepLease(working, end, j)
	select {
	case <-time.After(time.Duration(j.payload.Seconds * float64(time.Second))):
		return nil
	case <-working.Done():
		return errors.New("stopped as asked")
	}
}

func (w *worker) complete(j *job) (answer string, err error) {
	w.note("end", j, "complete")
	tx, err := w.db.Begin() // one transaction: both or neither
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	if _, err = tx.Exec("INSERT INTO booking VALUES ($1, $2, $3, $4)", j.id, j.payload.Transfer, j.payload.Amount, w.name); err != nil {
		return "", err
	}
	if err = tx.QueryRow("SELECT tq_complete($1, $2)", j.id, j.lease).Scan(&answer); err != nil {
		return "", err
	}
	return answer, tx.Commit()
}

func (w *worker) fail(j *job, cause error) (answer string, err error) {
	verb, fatal := "fail", errors.Is(cause, errFatal)
	if fatal {
		verb = "kill"
	}
	w.note("end", j, verb)
	err = w.db.QueryRow("SELECT tq_fail($1, $2, $3, fatal => $4)", j.id, j.lease, cause.Error(), fatal).Scan(&answer)
	return answer, err
}

func (w *worker) process(j *job) error {
	w.note("start", j, j.until)
	var answer string
	err := w.work(j)
	if err != nil {
		answer, err = w.fail(j, err)
	} else if answer, err = w.complete(j); err != nil && !isLost(err) && !serverGone(err) {
		answer, err = w.fail(j, err)
	}
	if isLost(err) { // another worker has the job by now
		answer, err = "lost", nil
	}
	if err == nil {
		w.note("told", j, answer)
	}
	return err
}

func (w *worker) run() {
	for w.stopping.Err() == nil {
		j, err := w.claim()
		if err == nil {
			err = w.process(j)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) && w.stopping.Err() == nil {
			// the server restarts: jobs in hand run again after their leases expire
			log.Print(err)
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func main() {
	// statement and arguments in one message: fewer round trips, and works behind a pooler
	db, err := sql.Open("postgres", "binary_parameters=yes")
	if err != nil {
		log.Fatal(err)
	}
	w := &worker{db: db, queue: os.Args[1], name: os.Args[2]}
	w.stopping, w.stop = signal.NotifyContext(context.Background(), syscall.SIGTERM)
	var all sync.WaitGroup
	for i := 0; i < atOnce; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			w.run()
		}()
	}
	all.Wait()
}
