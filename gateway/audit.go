package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"ahprelay/ahp"
	"ahprelay/alike"
	"ahprelay/auth"
)

// The audit says who did what: one log line each, with the message "audit" and
// these fields, of which those that do not apply are left out.
//
//	event    what happened, see below
//	tenant   of the host, subject or token
//	host     by name
//	subject  who: of a client's token
//	token    its ID (jti), never the token itself
//	device   whose token it is (package people)
//	conn     id of the connection, as in all other lines
//	address  where it came from, see Config.TrustProxy
//	code     close code of a client's connection
//	reason   why, for people
//	detail   more of it: what was shared or revoked, what a connection carried
//	count    the line stands for so many that were alike; without it, for one
//
// The events:
//
//	connect       a client was let in
//	disconnect    and is gone
//	refuse        a request, a client or a host-agent was not let in
//	host-connect, host-disconnect   the same of host-agents that come over /nats
//	enrol         a host-agent got credentials for NATS
//	share         relay share made a link
//	revoke        relay revoke, or a person, took something back
//	setup         somebody was let in by a link, with a new device
//	device        a device was approved
//	deny          a request to be let in was refused
//	token         a device made a token for another client
//	expire        a link, or an invitation that nobody has used, was over
//
// Lines go to the log, and as JSON to Config.AuditFile.
type auditLine struct {
	Event, Tenant, Host, Subject, Token, Device, Conn, Address string

	Code           ahp.CloseCode
	Reason, Detail string
	Count          int
}

// auditMessage is the message of all lines.
const auditMessage = "audit"

func (a auditLine) attrs() []slog.Attr {
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

// of fills in who a client token is for.
func (a auditLine) of(who auth.Client) auditLine {
	a.Tenant, a.Subject, a.Token, a.Device = who.Tenant, who.Subject, who.ID, who.Device
	return a
}

// Lines that are alike. What one source does again and again is counted
// together: the first lines are written at once, and what follows within
// auditEvery is one line at its end, which is the last of them, with their
// number as count. A source is a tenant, subject, token and address, the kind an
// event, and why something was refused. So no source is left out, and none fills
// a disk.
const (
	auditEvery = 10 * time.Second

	// What is written at once of a source: people come with some windows each,
	// and a refusal says all that the next one says.
	comingsAtOnce = 20
	refusedAtOnce = 1
)

// An audit writes lines.
type audit struct {
	log   *slog.Logger
	file  *slog.Logger // nil: none
	alike *alike.Table

	latest latest
}

// alikeKey is what lines have in common that are alike.
type alikeKey struct {
	event, why, tenant, subject, token, address string
}

// refuse writes that something was refused. Why is one of few words, and none
// that whoever was refused can choose.
func (a *audit) refuse(why string, line auditLine) {
	line.Event = "refuse"
	a.often(why, refusedAtOnce, line)
}

// comings writes who comes and goes.
func (a *audit) comings(line auditLine) { a.often("", comingsAtOnce, line) }

// often writes a line that somebody may cause all the time.
func (a *audit) often(why string, atOnce int, line auditLine) {
	from := cmp.Or(addressGroup(line.Address), line.Address)
	key := alikeKey{line.Event, why, line.Tenant, line.Subject, line.Token, from}
	a.alike.Note(key, atOnce, func(more int) {
		line.Count = more
		a.write(line)
	})
}

func (a *audit) write(line auditLine) {
	a.latest.add(line)
	attrs := line.attrs()
	a.log.LogAttrs(context.Background(), slog.LevelInfo, auditMessage, attrs...)
	if a.file != nil {
		a.file.LogAttrs(context.Background(), slog.LevelInfo, auditMessage, attrs...)
	}
}

// OpenAuditFile opens a file to append audit lines to, which only its owner
// may read. It may be rotated by copying and truncating it.
func OpenAuditFile(path string) (*AuditFile, error) {
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
	a := &AuditFile{file: f}
	if err := a.findLast(); err != nil {
		return nil, errors.Join(fmt.Errorf("--audit-file: %w", err), f.Close())
	}
	return a, nil
}

// newAudit returns an audit that writes to a log, and to a file if not nil.
func newAudit(log *slog.Logger, file io.Writer) *audit {
	a := &audit{log: log, alike: alike.New(auditEvery), latest: latest{since: time.Now().UTC()}}
	if file != nil {
		failing := &auditWriter{to: file, log: log}
		a.file = slog.New(slog.NewJSONHandler(failing, nil))
	}
	return a
}

// An auditWriter says in the log what could not be written.
type auditWriter struct {
	to  io.Writer
	log *slog.Logger
}

func (w *auditWriter) Write(line []byte) (int, error) {
	n, err := w.to.Write(line)
	if err != nil {
		w.log.Error("a line of the audit could not be written to its file", "error", err)
	}
	return n, err
}
