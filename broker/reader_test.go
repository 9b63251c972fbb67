package broker_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/test/natssite"
)

// reader connects as nats --creds does, with credentials from [auth.Authority.ChannelReader]. It
// returns the connection, and a channel with its errors.
func reader(t *testing.T, s *natssite.Site, host string, ttl time.Duration) (conn *nats.Conn, errs chan error) {
	t.Helper()
	creds, err := s.Keys.Authority().ChannelReader("acme", host, ttl)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(file, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	errs = make(chan error, 1000)
	conn, err = natssite.Connect(s.URL(), nats.UserCredentials(file), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn, errs
}

// TestReaderSeesChannelsOnly connects a reader of one host's channels. It must receive messages on
// these channels. All other subscriptions, and each publish, must be refused.
func TestReaderSeesChannelsOnly(t *testing.T) {
	s := natssite.New(t)
	relay := s.Relay(t)
	everything := natssite.Subscribe(t, relay, ">")
	natssite.WantPassage(t, s.Relay(t), relay, "ahp.v1.acme.laptop.ctl.ready")
	conn, errs := reader(t, s, "laptop", time.Hour)
	heard := make(chan *nats.Msg, 1000)
	subscribe := func(subject string) {
		t.Helper()
		if _, err := conn.ChanSubscribe(subject, heard); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range []string{
		">", "ahp.>", "ahp.v1.acme.>", "ahp.v1.acme.laptop.>", "ahp.v1.acme.laptop.link.>", "ahp.v1.acme.laptop.ctl.>", "ahp.v1.acme.laptop.inbox.>",
		"ahp.v1.acme.*.chan.>", "ahp.v1.acme.server.chan.>", "ahp.v1.other.laptop.chan.>", "ahp.v1.acme.laptop.*.x",
		"_INBOX.>", "$SYS.>", "$JS.API.>", "$KV.>", "ahp.relays.v1.>",
	} {
		subscribe(subject)
		wantViolation(t, errs, subject)
	}
	for _, subject := range []string{"ahp.v1.acme.laptop.chan.x", "ahp.v1.acme.laptop.link.a.r.up", "ahp.v1.acme.laptop.ctl.lease", "_INBOX.x", "$JS.API.INFO", "$SYS.REQ.SERVER.PING", "anything"} {
		if err := conn.Publish(subject, []byte("forged")); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, errs, subject)
	}
	subscribe("ahp.v1.acme.laptop.chan.>")
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"ahp.v1.acme.laptop.link.a.r.up", "ahp.v1.acme.laptop.ctl.lease", "ahp.v1.acme.server.chan.x", "ahp.v1.acme.laptop.chan.x"} {
		if err := relay.Publish(subject, []byte("said")); err != nil {
			t.Fatal(err)
		}
	}
	if msg := natssite.Next(t, "what is said on a channel", heard); msg.Subject != "ahp.v1.acme.laptop.chan.x" || string(msg.Data) != "said" {
		t.Errorf("the reader heard %q on %s; want said on ahp.v1.acme.laptop.chan.x", msg.Data, msg.Subject)
	}
	natssite.WantPassage(t, s.Relay(t), relay, "ahp.v1.acme.laptop.ctl.done")
	for len(everything) > 0 {
		if msg := <-everything; string(msg.Data) == "forged" {
			t.Errorf("a message from a reader of channels got through on %s; want none", msg.Subject)
		}
	}
}

// TestReaderOfAllHosts connects a reader for all hosts of a tenant. It must receive messages on
// their channels, until its credentials expire and the server closes the connection.
func TestReaderOfAllHosts(t *testing.T) {
	s := natssite.New(t)
	relay := s.Relay(t)
	conn, _ := reader(t, s, "", 3*time.Second) // NATS counts in seconds
	heard := make(chan *nats.Msg, 1)
	if _, err := conn.ChanSubscribe("ahp.v1.acme.*.chan.>", heard); err != nil {
		t.Fatal(err)
	}
	closed := conn.StatusChanged(nats.CLOSED)
	if err := conn.Flush(); err == nil { // an error means that the credentials have expired
		if err := relay.Publish("ahp.v1.acme.server.chan.x", nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-heard:
		case <-closed: // expired
			return
		}
	}
	natssite.Next(t, "the end", closed)
}

func TestReadersOfUnclearHostsAreRefused(t *testing.T) {
	k := natssite.NewKeys(t)
	for _, test := range []struct {
		tenant, host string
		ttl          time.Duration
	}{{"*", "", time.Hour}, {"acme", ">", time.Hour}, {"acme", "a.b", time.Hour}, {"acme", "", 0}, {"acme", "", auth.MaxReaderTTL + 1}, {"", "", time.Hour}} {
		if creds, err := k.Authority().ChannelReader(test.tenant, test.host, test.ttl); err == nil {
			t.Errorf("ChannelReader for %+v returned %d bytes of credentials; want an error", test, len(creds))
		}
	}
}
