package broker

import (
	"context"
	"time"
)

// The timeouts of [AskAgain]. The first exceeds the round trip between distant
// servers; later ones grow for busy servers.
const (
	firstAnswer = 150 * time.Millisecond
	longer      = 4
)

// AskAgain repeats a JetStream request with growing timeouts until a server answers or
// ctx ends. A new server does not reach its whole cluster at once, and requests to an
// unreachable server are lost silently. Ask must end with its context, and must be
// repeatable.
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
