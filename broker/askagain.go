package broker

import (
	"context"
	"time"
)

// How long [AskAgain] waits: at first for longer than servers far from each other need, and then so
// many times as long, as one that is busy needs.
const (
	firstAnswer = 150 * time.Millisecond
	longer      = 4
)

// AskAgain asks the servers that have JetStream until one answers, longer each time, or until
// ctx ends. A server that has just begun does not reach all others of its cluster yet. What is asked
// of one that it does not reach is lost, and nobody says so. Ask must end with its context, and make
// no difference when it is called again.
func AskAgain[T any](ctx context.Context, ask func(ctx context.Context) (T, error)) (T, error) {
	for wait := firstAnswer; ; wait *= longer {
		once, cancel := context.WithTimeout(ctx, wait)
		answer, err := ask(once)
		unanswered := once.Err() != nil
		cancel()
		if err == nil || !unanswered || ctx.Err() != nil {
			return answer, err
		}
	}
}
