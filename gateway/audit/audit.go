package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/internal/coalesce"
)

// A Line is an audit line. The package documentation describes its fields.
type Line struct {
	Event, Tenant, Host, Subject, Token, Device, Conn, Address string

	Code           ahp.CloseCode
	Reason, Detail string
	Count          int
}

const message = "audit"

func (a Line) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("event", a.Event)}
	for _, f := range []struct{ name, value string }{
		{"tenant", a.Tenant}, {"host", a.Host}, {"subject", a.Subject}, {"token", a.Token}, {"device", a.Device}, {"conn", a.Conn}, {"address", a.Address},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.name, f.value))
		}
	}
	if a.Code != 0 {
		attrs = append(attrs, slog.Int("code", int(a.Code)))
	}
	if a.Reason != "" {
		attrs = append(attrs, slog.String("reason", a.Reason))
	}
	if a.Detail != "" {
		attrs = append(attrs, slog.String("detail", a.Detail))
	}
	if a.Count != 0 {
		attrs = append(attrs, slog.Int("count", a.Count))
	}
	return attrs
}

// Of returns the line with a client's fields.
func (a Line) Of(who auth.Client) Line {
	a.Tenant, a.Subject, a.Token, a.Device = who.Tenant, who.Subject, who.ID, who.Device
	return a
}

// Shared returns the line about a new link, which a token represents.
func Shared(who auth.Client, address string) Line {
	line := Line{Event: "share", Address: address}.Of(who)
	if len(who.Hosts) == 1 {
		line.Host = who.Hosts[0]
	}
	line.Detail = fmt.Sprintf("%s, access %s, until %s", strings.Join(who.Channels, " "), who.Access, who.Expires.UTC().Format(time.RFC3339))
	return line
}

// Equal events are coalesced, so that no client can fill a disk and no event is omitted.
// The first few are written at once. The events in the [Every] that follows become one
// line: the last event, with the number of events as count. Events are equal if they have
// the same event, tenant, subject, token, address group, and reason for a refusal.
const (
	Every = 10 * time.Second // equal events in this time become one line

	// The number of equal events that are written at once. It is higher for connections,
	// because each connection matters, and a person opens several windows together.
	// Repeated refusals contain no news.
	comingsAtOnce = 20
	RefusedAtOnce = 1
)

// A Log writes audit lines.
type Log struct {
	log    *slog.Logger
	file   *slog.Logger // nil: no file
	events *coalesce.Table

	latest latest
}

// eventKey identifies equal events.
type eventKey struct {
	event, why, tenant, subject, token, address string
}

// Refuse writes a refusal. why must be from a small set that clients cannot extend.
func (a *Log) Refuse(why string, line Line) {
	line.Event = "refuse"
	a.Often(why, RefusedAtOnce, line)
}

// Comings writes an event of normal use, such as connect or canvas.
func (a *Log) Comings(line Line) { a.Often("", comingsAtOnce, line) }

// Often writes an event that a client can repeat at will. Beyond atOnce, equal events are
// coalesced.
func (a *Log) Often(why string, atOnce int, line Line) {
	from := cmp.Or(admission.AddressGroup(line.Address), line.Address)
	key := eventKey{line.Event, why, line.Tenant, line.Subject, line.Token, from}
	a.events.Note(key, atOnce, func(more int) {
		line.Count = more
		a.Write(line)
	})
}

// Write writes a line without coalescing.
func (a *Log) Write(line Line) {
	a.latest.add(line)
	attrs := line.attrs()
	a.log.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
	if a.file != nil {
		a.file.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
	}
}

// OpenFile opens a file for appending audit lines, readable only by its owner. It creates no
// directory: with a mistyped path, or a disk that is not mounted, the audit would go elsewhere. The file
// can be rotated by copying and truncating.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--audit-file: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("--audit-file %s has mode %04o, so other users can access it; run: chmod 600 %[1]s", path, info.Mode().Perm())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	a := &File{file: f}
	if err := a.findLast(); err != nil {
		return nil, errors.Join(fmt.Errorf("--audit-file: %w", err), f.Close())
	}
	return a, nil
}

// New returns a Log that writes to log and, if not nil, to file.
func New(log *slog.Logger, file io.Writer) *Log {
	a := &Log{log: log, events: coalesce.New(Every), latest: latest{since: time.Now().UTC()}}
	if file != nil {
		failing := &fileWriter{to: file, log: log}
		a.file = slog.New(slog.NewJSONHandler(failing, nil))
	}
	return a
}

// Run writes coalesced events when they are due, until ctx ends.
func (a *Log) Run(ctx context.Context) { a.events.Run(ctx) }

// Flush writes the coalesced events now.
func (a *Log) Flush() { a.events.Flush() }

// A fileWriter logs an error when a write fails.
type fileWriter struct {
	to  io.Writer
	log *slog.Logger
}

func (w *fileWriter) Write(line []byte) (int, error) {
	n, err := w.to.Write(line)
	if err != nil {
		w.log.Error("audit file not written", "error", err)
	}
	return n, err
}
