package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/internal/coalesce"
)

// A Line is one of the audit. The documentation of the package says what its fields are.
type Line struct {
	Event, Tenant, Host, Subject, Token, Device, Conn, Address string

	Code           ahp.CloseCode
	Reason, Detail string
	Count          int
}

// message is the message of all lines.
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

// Of fills in who a client token is for.
func (a Line) Of(who auth.Client) Line {
	a.Tenant, a.Subject, a.Token, a.Device = who.Tenant, who.Subject, who.ID, who.Device
	return a
}

// Shared is a line that a link was made, for a token.
func Shared(who auth.Client, address string) Line {
	line := Line{Event: "share", Address: address}.Of(who)
	if len(who.Hosts) == 1 {
		line.Host = who.Hosts[0]
	}
	line.Detail = fmt.Sprintf("%s, access %s, until %s", strings.Join(who.Channels, " "), who.Access, who.Expires.UTC().Format(time.RFC3339))
	return line
}

// Lines that are alike. What one source does again and again is counted
// together: the first lines are written at once, and what follows within
// [Every] is one line at its end, which is the last of them, with their
// number as count. A source is a tenant, subject, token and address, the kind an
// event, and why something was refused. So no source is left out, and none fills
// a disk.
const (
	Every = 10 * time.Second // the time in which lines that are alike are counted

	// What is written at once of a source: people come with some windows each,
	// and a refusal says all that the next one says.
	comingsAtOnce = 20
	RefusedAtOnce = 1 // the same of refusals
)

// A Log writes lines.
type Log struct {
	log   *slog.Logger
	file  *slog.Logger // nil: none
	alike *coalesce.Table

	latest latest
}

// alikeKey is what lines have in common that are alike.
type alikeKey struct {
	event, why, tenant, subject, token, address string
}

// Refuse writes that something was refused. Why is one of few words, and none
// that whoever was refused can choose.
func (a *Log) Refuse(why string, line Line) {
	line.Event = "refuse"
	a.Often(why, RefusedAtOnce, line)
}

// Comings writes who comes and goes.
func (a *Log) Comings(line Line) { a.Often("", comingsAtOnce, line) }

// Often writes a line that somebody may cause all the time.
func (a *Log) Often(why string, atOnce int, line Line) {
	from := cmp.Or(admission.AddressGroup(line.Address), line.Address)
	key := alikeKey{line.Event, why, line.Tenant, line.Subject, line.Token, from}
	a.alike.Note(key, atOnce, func(more int) {
		line.Count = more
		a.Write(line)
	})
}

// Write writes a line at once.
func (a *Log) Write(line Line) {
	a.latest.add(line)
	attrs := line.attrs()
	a.log.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
	if a.file != nil {
		a.file.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
	}
}

// OpenFile opens a file to append audit lines to, which only its owner
// may read. It may be rotated by copying and truncating it.
func OpenFile(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("--audit-file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--audit-file: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("--audit-file %s has mode %04o, so others than its owner may use it; run: chmod 600 %[1]s", path, info.Mode().Perm())
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

// New returns an audit that writes to a log, and to a file if not nil.
func New(log *slog.Logger, file io.Writer) *Log {
	a := &Log{log: log, alike: coalesce.New(Every), latest: latest{since: time.Now().UTC()}}
	if file != nil {
		failing := &fileWriter{to: file, log: log}
		a.file = slog.New(slog.NewJSONHandler(failing, nil))
	}
	return a
}

// Run writes what was counted together when its time is over, until ctx ends.
func (a *Log) Run(ctx context.Context) { a.alike.Run(ctx) }

// Flush writes it now.
func (a *Log) Flush() { a.alike.Flush() }

// An fileWriter says in the log what could not be written.
type fileWriter struct {
	to  io.Writer
	log *slog.Logger
}

func (w *fileWriter) Write(line []byte) (int, error) {
	n, err := w.to.Write(line)
	if err != nil {
		w.log.Error("a line of the audit could not be written to its file", "error", err)
	}
	return n, err
}
