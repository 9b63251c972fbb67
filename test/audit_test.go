package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/auth"
	operatorapi "ahprelay/gateway/api/operator"
	"ahprelay/gateway/audit"
	"ahprelay/test/locked"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// An auditTrail reads the audit file of a relay.
type auditTrail struct {
	t     *testing.T
	path  string
	names map[string]string // fixed names for random values, by value
	conns int               // number of connections in names
}

// lines returns all lines of the file. Times are left out, and fixed names replace
// random values.
func (a *auditTrail) lines() (lines []string) {
	a.t.Helper()
	data, err := os.ReadFile(a.path)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := audit.Read(strings.NewReader(string(data)), "", func(audit.Entry) error { return nil }); err != nil {
		a.t.Errorf("the audit's lines are not a chain: %v; want no error", err)
	}
	for line := range strings.Lines(string(data)) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil || fields["msg"] != "audit" || fields["time"] == nil {
			a.t.Fatalf("the audit has the line %s (%v); want JSON with msg audit, and a time", line, err)
		}
		var words []string
		for _, name := range []string{"event", "tenant", "host", "subject", "token", "device", "conn", "address", "code", "reason", "detail", "count"} {
			value, ok := fields[name]
			if !ok {
				continue
			}
			delete(fields, name)
			words = append(words, name+"="+a.name(name, fmt.Sprint(value)))
		}
		for _, extra := range slices.Sorted(maps.Keys(fields)) {
			if extra != "msg" && extra != "time" && extra != "level" && extra != "prev" {
				a.t.Errorf("the audit's field %s is not in the documents", extra)
			}
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

// name returns the fixed name for a field's random value, or the value if it is not
// random.
func (a *auditTrail) name(field, value string) string {
	switch field {
	case "conn":
		if a.names[value] == "" {
			a.conns++
			a.names[value] = fmt.Sprint("conn-", a.conns)
		}
		return a.names[value]
	case "token":
		if known := a.names[value]; known != "" {
			return known
		}
		return "enrolment"
	case "detail", "reason":
		if at := strings.Index(value, "until "); at >= 0 {
			value = value[:at] + "until then"
		}
		if strings.Contains(value, "frames in") {
			return "traffic"
		}
	}
	return value
}

// wants waits until the file has enough lines behind the first from lines. These must
// equal want, in order. It returns the number of lines that are checked so far.
func (a *auditTrail) wants(from int, want ...string) int {
	a.t.Helper()
	for deadline := time.Now().Add(stepTime); len(a.lines()) < from+len(want) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	got := a.lines()[from:]
	if diff := cmp.Diff(want, got); diff != "" {
		a.t.Fatalf("audit (-want +got):\n%s", diff)
	}
	return from + len(want)
}

// awaits waits for a line behind the first from lines that begins with want. Other
// lines may stand before it.
func (a *auditTrail) awaits(from int, want string) {
	a.t.Helper()
	for deadline := time.Now().Add(stepTime); ; time.Sleep(10 * time.Millisecond) {
		got := a.lines()[from:]
		if slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, want) }) {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("audit:\n%s\nwant %s", strings.Join(got, "\n"), want)
		}
	}
}

// A test performs every audited action. The relay must write a line for each action, to
// the audit file and to its log. Neither may contain a token.
func TestEveryAuditedActionIsWritten(t *testing.T) {
	t.Parallel()
	_, host := newRefhost(t, nil)
	a := &auditTrail{t: t, path: filepath.Join(t.TempDir(), "audit"), names: map[string]string{}}
	file, err := audit.OpenFile(a.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log := &locked.Buffer{}
	var cfg stack.Config
	cfg.Upstream = host.URL()
	cfg.Relay.Gateway.AuditFile = file
	cfg.Relay.Gateway.Log = slog.New(slog.NewTextHandler(log, nil))
	cfg.Relay.Gateway.Limits.Subject.Connections = 1
	s := startStack(t, cfg)
	const at = "address=127.0.0.1"
	next := a.wants(0,
		"event=enrol tenant=default host=laptop token=enrolment "+at+" detail=NATS credentials until then",
		"event=host-connect tenant=default host=laptop token=enrolment "+at,
	)

	var secrets []string
	token := func(id, subject string, hosts ...string) string {
		t.Helper()
		text, err := s.Token(func(c *auth.Client) { c.ID, c.Subject, c.Hosts = id, subject, hosts })
		if err != nil {
			t.Fatal(err)
		}
		a.names[id] = id
		secrets = append(secrets, text)
		return text
	}
	dial := func(host, token string) *refclient.Client {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		c, err := refclient.Dial(ctx, s.URL(host), refclient.Options{Token: token})
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c
	}
	ada := token("one", "ada", "laptop")
	c := dial(stack.Host, ada)
	next = a.wants(next, "event=connect tenant=default host=laptop subject=ada token=one conn=conn-1 "+at)
	dial(stack.Host, ada)
	next = a.wants(next, "event=refuse tenant=default host=laptop subject=ada token=one "+at+" reason=limit of 1 connections of this subject")
	c.Close()
	next = a.wants(next, "event=disconnect tenant=default host=laptop subject=ada token=one conn=conn-1 "+at+" code=1000 detail=traffic")

	dial("desktop", token("two", "bob", "laptop"))
	next = a.wants(next, "event=refuse tenant=default host=desktop subject=bob token=two conn=conn-2 "+at+" code=4503 reason=forbidden: this token is not for that host")
	dial("desktop", token("three", "carol", "*"))
	next = a.wants(next, "event=refuse tenant=default host=desktop subject=carol token=three conn=conn-3 "+at+" code=4504 reason=unknown host: no host-agent has ever enrolled under that name")
	dial(stack.Host, "nonsense")
	next = a.wants(next, "event=refuse "+at+" reason=token invalid: not a JWT, or only a part of one detail=GET /ahp/laptop")

	operate := func(path string, body any) {
		t.Helper()
		operator, err := s.Relay.Keys().Tokens().IssueOperator("test")
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, operator)
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Relay.URL()+path, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+operator)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: HTTP %d; want 200", path, answer.StatusCode)
		}
	}
	shared := token("four", "guest", "laptop")
	operate("/operator/shares", map[string]string{"token": shared})
	next = a.wants(next, "event=share tenant=default host=laptop subject=guest token=four "+at+" detail=, access write, until then")
	dial(stack.Host, shared)
	next = a.wants(next, "event=connect tenant=default host=laptop subject=guest token=four conn=conn-4 "+at)
	operate("/operator/revocations", operatorapi.RevokeRequest{Token: "four"})
	next = a.wants(next,
		"event=revoke token=four "+at,
		"event=disconnect tenant=default host=laptop subject=guest token=four conn=conn-4 "+at+" code=4501 reason=token revoked detail=traffic",
	)
	operate("/operator/revocations", operatorapi.RevokeRequest{Tenant: "default", Subject: "bob"})
	next = a.wants(next, "event=revoke tenant=default subject=bob "+at)

	time.Sleep(time.Second) // so that the enrolment token was issued in an earlier second than its revocation
	operate("/operator/revocations", operatorapi.RevokeRequest{Tenant: "default", Host: "laptop"})
	for _, want := range []string{
		"event=revoke tenant=default host=laptop " + at, "event=host-disconnect tenant=default host=laptop token=enrolment " + at,
		"event=refuse " + at + " reason=token revoked detail=",
	} {
		a.awaits(next, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := s.AwaitState(ctx, "offline"); err != nil {
		t.Errorf("after the enrolment's revocation, the host is not offline: %v", err)
	}

	s.Close() // the relay writes nothing after this

	written, err := os.ReadFile(a.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		if strings.Contains(string(written)+log.String(), secret) {
			t.Error("a token is in the audit or the log; want none")
		}
	}
	if inLog := strings.Count(log.String(), "msg=audit"); inLog != len(a.lines()) {
		t.Errorf("%d audit lines in the log, and %d in the file; want the same", inLog, len(a.lines()))
	}
}
