package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"ahprelay/internal/tracing"
)

// lastSpans is how long a process that stops may take to send its last spans.
const lastSpans = 3 * time.Second

// Tracer returns what makes spans for a program, if its environment asks for that; else nil.
// End sends the last ones.
func Tracer(ctx context.Context, program string, log *slog.Logger) (t *tracing.Tracer, end func(), err error) {
	t, err = tracing.FromEnv(ctx, os.Getenv, tracing.Service{Name: program, Version: BuildVersion()}, log)
	if err != nil {
		return nil, nil, err
	}
	return t, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := t.Close(last); err != nil {
			log.Warn("last traces", "error", err)
		}
	}, nil
}
