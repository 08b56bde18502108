// Enqueues with lib/pq.   usage: enqueue QUEUE NAME COUNT   (and the usual PG* variables)
// Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
// so no worker ever sees its job.
package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"

	_ "github.com/lib/pq"
)

func enqueue(db *sql.DB, queue, transfer string, i int) error {
	amount, failures := i, 0
	if i%10 == 9 {
		amount = 0
	}
	if i%5 == 0 {
		failures = 1
	}
	var delay *string
	if i%4 == 0 {
		text := "300 ms"
		delay = &text
	}
	// a string: lib/pq would send []byte as bytea
	payload, err := json.Marshal(map[string]any{
		"transfer": transfer, "amount": amount, "seconds": float64(i%4) / 20, "failures": failures})
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err = tx.Exec("INSERT INTO transfer VALUES ($1, $2)", transfer, amount); err != nil {
		return err
	}
	var id int64
	err = tx.QueryRow("SELECT tq_enqueue($1, $2, kind => 'transfer', delay => $3)", queue, string(payload), delay).Scan(&id)
	if err != nil || i%7 == 0 {
		return err
	}
	if err = tx.Commit(); err == nil {
		fmt.Println(transfer, id)
	}
	return err
}

func main() {
	queue, name := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	// statement and arguments in one message: fewer round trips, and works behind a pooler
	db, err := sql.Open("postgres", "binary_parameters=yes")
	if err != nil {
		log.Fatal(err)
	}
	for i := 1; i <= count; i++ {
		if err := enqueue(db, queue, fmt.Sprintf("%s-%d", name, i), i); err != nil {
			log.Fatal(err)
		}
	}
}
