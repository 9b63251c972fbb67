// Package tracer starts a program's traces. Programs without traces do not link it.
package tracer

import (
	"context"
	"log/slog"
	"os"
	"time"

	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/tracing"
)

// lastSpans bounds the time for sending the last spans at shutdown.
const lastSpans = 3 * time.Second

// Start returns a program's tracer, nil if the environment asks for none. End sends
// the last spans.
func Start(ctx context.Context, program string, log *slog.Logger) (t *tracing.Tracer, end func(), err error) {
	t, err = tracing.FromEnv(os.Getenv, tracing.Service{Name: program, Version: cli.BuildVersion()}, log)
	if err != nil {
		return nil, nil, err
	}
	return t, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
		defer cancel()
		if err := t.Close(last); err != nil {
			log.Warn("last traces not sent", "error", err)
		}
	}, nil
}
