#!/usr/bin/env php
<?php
// Cancels orders that were not paid in time, as the command of timerd consume.
//
//     timerd consume shop:order:timeout -- php handler.php
//
// It reads one event a line and answers with one line each. Standard error is free for messages.

declare(strict_types=1);

ini_set('display_errors', 'stderr'); // by default PHP writes warnings to standard output, between the answers

/** Stands for your own work. An event may come twice: the work has to be safe to repeat. */
function cancel(string $order, array $payload, int $attempt): void
{
    if ($payload['total'] < 0) {
        throw new DomainException('a negative total'); // hopeless: a dead letter
    }
    if (!empty($payload['flaky']) && $attempt === 1) {
        throw new RuntimeException('the shop does not answer'); // another attempt, by the policy of TIMERD_RETRY
    }
    fwrite(STDERR, "order $order is cancelled, attempt $attempt\n");
}

while (($line = fgets(STDIN)) !== false) {
    $event = json_decode($line, true, 512, JSON_THROW_ON_ERROR);
    $answer = ['id' => $event['id'], 'result' => 'done'];
    try {
        cancel($event['timerid'], $event['data'], $event['attempt']);
    } catch (DomainException $error) {
        $answer = ['id' => $event['id'], 'result' => 'dead', 'reason' => $error->getMessage()];
    } catch (RuntimeException $error) {
        $answer = ['id' => $event['id'], 'result' => 'retry', 'error' => $error->getMessage()];
    }
    fwrite(STDOUT, json_encode($answer, JSON_THROW_ON_ERROR) . "\n");
}
