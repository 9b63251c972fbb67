package broker

import (
	"context"
	"time"
)

// Timeouts of [AskAgain]. The first is longer than the round trip between distant servers. Each
// further timeout is the previous one multiplied by longer, because servers may be busy.
const (
	firstAnswer = 150 * time.Millisecond
	longer      = 4
)

// AskAgain repeats a JetStream request with growing timeouts until a server answers or
// ctx ends. Repetition is necessary because a new server does not reach all servers of
// its cluster at once, and a request to an unreachable server is lost silently. Ask
// must return when its context ends, and must be safe to repeat.
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
