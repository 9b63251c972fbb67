// Package natslog writes the log of a NATS server within this process into a [slog.Logger].
package natslog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Log lines are limited, because each forbidden message from a host-agent causes one.
const (
	logLinesEvery = 100 * time.Millisecond
	logLinesBurst = 50

	// foreignEvery is the interval between log lines about routes with different
	// keys, and between lines about unreachable regions. NATS retries both every
	// second.
	foreignEvery = 10 * time.Second
)

// A Log receives a NATS server's log. Notices become debug lines, except those
// about slow consumers. Errors about a client or a lost server become warnings.
// Protocol bytes quoted in a line are removed.
type Log struct {
	log     *slog.Logger
	limit   *rate.Limiter
	foreign *rate.Limiter
	away    *rate.Limiter // limits the lines about unreachable regions
	skipped atomic.Int64

	mu    sync.Mutex
	first string // the first fatal message
}

// New returns a log that writes to log, or nothing without it.
func New(log *slog.Logger) *Log {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Log{
		log: log, limit: rate.NewLimiter(rate.Every(logLinesEvery), logLinesBurst),
		foreign: rate.NewLimiter(rate.Every(foreignEvery), 1), away: rate.NewLimiter(rate.Every(foreignEvery), 1),
	}
}

// Fatal returns the reason why the server could not start, or "".
func (l *Log) Fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// misleads reports whether a line warns of something normal.
func misleads(text string) bool {
	return strings.Contains(text, "solicited routes will not be verified") || strings.Contains(text, "solicited gateways will not be verified") || // the keys verify them: see auth.Keys.ClusterTLS
		strings.HasSuffix(text, "TLS route handshake error: EOF") // another relay's Absent has tried whether this server accepts connections
}

func (l *Log) write(level slog.Level, format string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	text := fmt.Sprintf(format, args...)
	if misleads(text) {
		return
	}
	away := strings.Contains(text, "rror connecting to explicit gateway") || strings.Contains(text, "rror connecting to implicit gateway")
	if away && !l.away.Allow() {
		return
	}
	aboutOthers := away || strings.Contains(text, " - cid:") || strings.Contains(text, "trying to connect to route")
	if level == slog.LevelError && aboutOthers {
		level = slog.LevelWarn
	}
	foreign := isForeignRoute(text)
	if foreign && !l.foreign.Allow() {
		return
	}
	if !l.limit.Allow() {
		l.skipped.Add(1)
		return
	}
	text, _, _ = strings.Cut(text, " proto='")
	attrs := []slog.Attr{slog.String("text", text)}
	if foreign {
		attrs = append(attrs, slog.String("hint", "all relays of a cluster and its regions need the same keys: copy the directory \"keys\" from one data directory to the others"))
	}
	if n := l.skipped.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("skipped", n))
	}
	l.log.LogAttrs(ctx, level, "NATS server", attrs...)
}

// isForeignRoute reports whether a line is about a route or gateway refused because
// of different or missing keys.
func isForeignRoute(text string) bool {
	return (strings.Contains(text, "TLS route handshake error") || strings.Contains(text, "TLS gateway handshake error")) &&
		(strings.Contains(text, "certificate") || strings.Contains(text, "verify"))
}

// Noticef implements the NATS server's logger interface.
func (l *Log) Noticef(format string, v ...any) {
	level := slog.LevelDebug
	if strings.Contains(format, "Slow Consumer") {
		level = slog.LevelWarn
	}
	l.write(level, format, v)
}

// Warnf implements the NATS server's logger interface.
func (l *Log) Warnf(format string, v ...any) { l.write(slog.LevelWarn, format, v) }

// Errorf implements the NATS server's logger interface.
func (l *Log) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v) }

// Fatalf implements the NATS server's logger interface. The server calls it if it
// cannot start, and embedded.Start returns the message as an error.
func (l *Log) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == "" {
		l.first = fmt.Sprintf(format, v...)
	}
}

// Debugf implements the NATS server's logger interface. Debugging is disabled.
func (l *Log) Debugf(string, ...any) {}

// Tracef implements the NATS server's logger interface. Tracing is disabled, because
// it would log message bodies.
func (l *Log) Tracef(string, ...any) {}
