package broker

import (
	"context"
	"time"
)

// firstAnswer is for how long [AskAgain] waits the first time: longer than servers far from each
// other need.
const firstAnswer = 150 * time.Millisecond

// AskAgain asks the servers that have JetStream until one answers, twice as long each time, or until
// ctx ends. A server that has just begun does not reach all others of its cluster yet. What is asked
// of one that it does not reach is lost, and nobody says so. Ask must end with its context, and make
// no difference when it is called again.
func AskAgain[T any](ctx context.Context, ask func(ctx context.Context) (T, error)) (T, error) {
	for wait := firstAnswer; ; wait *= 2 {
		once, cancel := context.WithTimeout(ctx, wait)
		answer, err := ask(once)
		unanswered := once.Err() != nil
		cancel()
		if err == nil || !unanswered || ctx.Err() != nil {
			return answer, err
		}
	}
}
