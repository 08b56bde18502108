#!/usr/bin/env php
<?php
// Enqueues with PDO.   usage: enqueue.php QUEUE NAME COUNT   (and the usual PG* variables)
// Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
// so no worker ever sees its job.
declare(strict_types=1);

[, $queue, $name, $count] = $argv;
$db = new PDO('pgsql:', options: [PDO::PGSQL_ATTR_DISABLE_PREPARES => true]); // works behind a pooler, too
$insert = $db->prepare('INSERT INTO transfer VALUES (?, ?)');
$enqueue = $db->prepare("SELECT tq_enqueue(?, ?, kind => 'transfer', delay => ?)");
for ($i = 1; $i <= $count; $i++) {
    $transfer = "$name-$i";
    $amount = $i % 10 === 9 ? 0 : $i;
    $payload = ['transfer' => $transfer, 'amount' => $amount, 'seconds' => $i % 4 / 20, 'failures' => (int) ($i % 5 === 0)];
    $db->beginTransaction();
    $insert->execute([$transfer, $amount]);
    $enqueue->execute([$queue, json_encode($payload), $i % 4 === 0 ? '300 ms' : null]);
    $id = $enqueue->fetchColumn();
    if ($i % 7 === 0) {
        $db->rollBack();
    } else {
        $db->commit();
        echo "$transfer $id\n";
    }
}
