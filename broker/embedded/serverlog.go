package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A host-agent can make the server log a line for each message that it may not
// send, so lines have a limit.
const (
	logLinesEvery = 100 * time.Millisecond
	logLinesBurst = 50

	// foreignEvery is how often a route from or to other keys is logged, and a region
	// that cannot be reached: they are tried again every second.
	foreignEvery = 10 * time.Second
)

// A serverLog takes the log of a NATS server. What the server notices is for
// debugging, except slow consumers; what it calls an error is a warning if it
// is about a client, or a server that is not there. Bytes of the protocol,
// which the server quotes if it does not understand them, are left out.
type serverLog struct {
	log     *slog.Logger
	limit   *rate.Limiter
	foreign *rate.Limiter
	away    *rate.Limiter // of regions that cannot be reached
	skipped atomic.Int64

	mu    sync.Mutex
	first string // fatal message
}

func newServerLog(log *slog.Logger) *serverLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &serverLog{
		log: log, limit: rate.NewLimiter(rate.Every(logLinesEvery), logLinesBurst),
		foreign: rate.NewLimiter(rate.Every(foreignEvery), 1), away: rate.NewLimiter(rate.Every(foreignEvery), 1),
	}
}

// fatal returns why the server could not start, empty if it could.
func (l *serverLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *serverLog) write(level slog.Level, format string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, "solicited routes will not be verified") || strings.Contains(text, "solicited gateways will not be verified") {
		return // they are, by the keys: see auth.Keys.ClusterTLS
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
	attrs := []slog.Attr{slog.String("said", text)}
	if foreign {
		attrs = append(attrs, slog.String("hint", "relays of one cluster, and of all its regions, need the same keys: copy the directory keys below the data directory of one to the others"))
	}
	if n := l.skipped.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("linesSkipped", n))
	}
	l.log.LogAttrs(ctx, level, "NATS server", attrs...)
}

// isForeignRoute reports whether a line says that a route, or a gateway to another region,
// was refused because the other end has other keys, or none.
func isForeignRoute(text string) bool {
	return (strings.Contains(text, "TLS route handshake error") || strings.Contains(text, "TLS gateway handshake error")) &&
		(strings.Contains(text, "certificate") || strings.Contains(text, "verify"))
}

// Noticef implements the logger interface of the NATS server.
func (l *serverLog) Noticef(format string, v ...any) {
	level := slog.LevelDebug
	if strings.Contains(format, "Slow Consumer") {
		level = slog.LevelWarn
	}
	l.write(level, format, v)
}

// Warnf implements the logger interface of the NATS server.
func (l *serverLog) Warnf(format string, v ...any) { l.write(slog.LevelWarn, format, v) }

// Errorf implements the logger interface of the NATS server.
func (l *serverLog) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v) }

// Fatalf implements the logger interface of the NATS server, which comes here
// instead of starting. Start returns it as an error.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == "" {
		l.first = fmt.Sprintf(format, v...)
	}
}

// Debugf implements the logger interface of the NATS server, which is not
// asked for it.
func (l *serverLog) Debugf(string, ...any) {}

// Tracef implements the logger interface of the NATS server. It would log
// messages.
func (l *serverLog) Tracef(string, ...any) {}
