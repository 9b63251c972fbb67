package link_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/test/natssite"
)

// trust returns a Trust that accepts relays with these keys.
func trust(keys ...*auth.Keys) link.Trust {
	return func() (list []ed25519.PublicKey, err error) {
		for _, k := range keys {
			list = append(list, k.Links().RelayKeys()[0])
		}
		return list, nil
	}
}

// TestProvedLinkCarries opens links with proofs and tags on a network that loses every eleventh
// message. All packets must arrive in order.
func TestProvedLinkCarries(t *testing.T) {
	keys, former := natssite.NewKeys(t), natssite.NewKeys(t)
	synctest.Test(t, func(t *testing.T) {
		e := newEndsThat(t, link.Config{}, trust(former, keys), slog.New(slog.DiscardHandler))
		defer e.close()
		e.prove = keys.Links().Prove
		var n atomic.Int64
		e.net.intercept(func(_ string, data []byte) ([]byte, error) {
			if n.Add(1)%11 == 0 {
				return nil, nil
			}
			return data, nil
		})
		r, other := e.join("relay1"), e.join("relay2")
		for i := range 100 {
			r.send(numbers(i, i)...)
			r.agent.send(numbers(i, i)...)
			time.Sleep(time.Millisecond)
		}
		other.agent.send("x")
		time.Sleep(2 * time.Minute) // resent packets can be lost too
		r.agent.wantGot(t, numbers(0, 99)...)
		r.wantGot(t, numbers(0, 99)...)
		other.wantGot(t, "x")
	})
}

// TestUntrustedRelayGetsNoLink lets relays with missing, foreign or false proofs open links. The
// host-agent must refuse each. Run must return the reason, and the host-agent log it once a minute.
func TestUntrustedRelayGetsNoLink(t *testing.T) {
	keys, stranger := natssite.NewKeys(t), natssite.NewKeys(t)
	for _, test := range []struct {
		name  string
		trust link.Trust
		prove link.Proof
		want  string
	}{
		{"another key", trust(keys), stranger.Links().Prove, "its key is not in"},
		{"another key's name", trust(keys), func(id auth.LinkID) (ed25519.PublicKey, []byte, error) {
			_, proof, err := stranger.Links().Prove(id)
			return keys.Links().RelayKeys()[0], proof, err
		}, "signature does not match"},
		{"proof of another link", trust(keys), func(id auth.LinkID) (ed25519.PublicKey, []byte, error) {
			id.Host = "other"
			return keys.Links().Prove(id)
		}, "signature does not match"},
		{"no proof", trust(keys), func(auth.LinkID) (ed25519.PublicKey, []byte, error) { return keys.Links().RelayKeys()[0], nil, nil }, "signature does not match"},
		{"no key", trust(keys), func(auth.LinkID) (ed25519.PublicKey, []byte, error) { return nil, nil, nil }, "its key is not in"},
		{"nobody is trusted", trust(), keys.Links().Prove, "its key is not in"},
		{"a token that cannot be read", func() ([]ed25519.PublicKey, error) { return nil, errors.New("gone") }, keys.Links().Prove, "gone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := natssite.LogLines{Lines: make(chan string, 100)}
				e := newEndsThat(t, link.Config{}, test.trust, slog.New(log))
				defer e.close()
				e.prove = test.prove
				for range 3 {
					r := e.start("relay1", testHello)
					err := <-r.result
					var untrusted *link.UntrustedError
					if !errors.As(err, &untrusted) || !strings.Contains(err.Error(), test.want) {
						t.Errorf("Run = %v; want an UntrustedError with %s", err, test.want)
					}
				}
				if len(e.accepted) != 0 {
					t.Error("the host-agent accepted an untrusted relay's link; want a refusal")
				}
				if len(log.Lines) != 1 {
					t.Errorf("%d lines in the host-agent's log for three attempts within a minute; want one", len(log.Lines))
				}
				if line := <-log.Lines; !strings.HasPrefix(line, "ERROR") || !strings.Contains(line, test.want) {
					t.Errorf("the host-agent's log has the line %s; want an ERROR with the reason", line)
				}
			})
		})
	}
}

// TestBothSidesMustWantAProof opens links where only one side wants a proof: the host-agent demands
// it and the relay has no key, or the relay insists and the host-agent sends no challenge. No link
// may open.
func TestBothSidesMustWantAProof(t *testing.T) {
	keys := natssite.NewKeys(t)
	synctest.Test(t, func(t *testing.T) {
		e := newEndsThat(t, link.Config{}, trust(keys), slog.New(slog.DiscardHandler))
		defer e.close()
		if err := <-e.start("relay1", testHello).result; !errors.Is(err, link.ErrSilent) {
			t.Errorf("Run of a relay without keys = %v; want %v", err, link.ErrSilent)
		}
		if len(e.accepted) != 0 {
			t.Error("the host-agent accepted the link; want a refusal")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, link.Config{})
		defer e.close()
		e.prove = keys.Links().Prove
		if err := <-e.start("relay1", testHello).result; !errors.Is(err, link.ErrRefused) {
			t.Errorf("Run at a host-agent that requires no proof = %v; want %v", err, link.ErrRefused)
		}
	})
}

// TestForgedPacketsAreIgnored plays an attacker that sees all packets, and adds, changes, repeats
// or swaps some. The ends must ignore them, and receive exactly the packets from each other. A
// replayed handshake must open no link.
func TestForgedPacketsAreIgnored(t *testing.T) {
	keys := natssite.NewKeys(t)
	synctest.Test(t, func(t *testing.T) {
		e := newEndsThat(t, link.Config{}, trust(keys), slog.New(slog.DiscardHandler))
		defer e.close()
		e.prove = keys.Links().Prove
		var mu sync.Mutex
		var seen [][2]string // subject and data of each message
		e.net.intercept(func(subject string, data []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, [2]string{subject, string(data)})
			return data, nil
		})
		r := e.join("relay1")
		r.send("one")
		r.agent.send("two")
		time.Sleep(time.Second)
		e.net.intercept(nil)
		replay := func(change func(subject, data string) (string, string)) {
			for _, s := range seen {
				subject, data := change(s[0], s[1])
				_ = e.net.Publish(subject, []byte(data))
				synctest.Wait()
			}
		}
		direction := strings.NewReplacer(".up", ".down", ".down", ".up")
		for _, change := range []func(subject, data string) (string, string){
			func(s, d string) (string, string) { return s, d },                                    // again
			func(s, d string) (string, string) { return direction.Replace(s), d },                 // back to its sender
			func(s, d string) (string, string) { return s, d[:len(d)-1] + string(d[len(d)-1]^1) }, // with a wrong tag
			func(s, d string) (string, string) { return s, d[:len(d)-min(16, len(d))] },           // without a tag
			func(s, d string) (string, string) { return strings.Replace(s, "relay1", "relay2", 1), d },
		} {
			replay(change)
		}
		var epoch byte
		for _, s := range seen {
			if s[1][0] == link.WireMax {
				epoch = s[1][2]
			}
		}
		for _, tag := range []string{"", strings.Repeat("\x00", 16), strings.Repeat("x", 16)} {
			evil := append([]byte{link.WireMax, 1, epoch, 2, 0}, "evil"+tag...) // data with the next number
			for _, subject := range []string{"down", "up"} {
				_ = e.net.Publish("ahp.v1.t.h.link.agent1.relay1."+subject, evil)
			}
			synctest.Wait()
		}
		r.send("three")
		r.agent.send("four")
		time.Sleep(time.Second)
		r.agent.wantGot(t, "one", "three")
		r.wantGot(t, "two", "four")
		if len(e.accepted) != 1 {
			t.Errorf("%d links; want one", len(e.accepted))
		}

		// Replaying the handshake of an ended link opens no link.
		r.cancel()
		<-r.result
		time.Sleep(time.Second)
		replay(func(s, d string) (string, string) { return s, d })
		time.Sleep(time.Second)
		if len(e.accepted) != 1 {
			t.Error("a replayed hello opened a link; want only the first link")
		}
		// A new, honest link still opens.
		e.join("relay1")
	})
}

// TestHandshakesWithoutProofAreBounded sends a thousand hellos without a proof. An honest relay
// must still get a link.
func TestHandshakesWithoutProofAreBounded(t *testing.T) {
	keys := natssite.NewKeys(t)
	synctest.Test(t, func(t *testing.T) {
		e := newEndsThat(t, link.Config{}, trust(keys), slog.New(slog.DiscardHandler))
		defer e.close()
		e.prove = keys.Links().Prove
		hello, err := json.Marshal(link.Hello{Epoch: 1, Wire: [2]int{1, 1}, Credit: 1, MaxFrame: 1, Share: bytes.Repeat([]byte{9}, 32)})
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			_ = e.net.Publish("ahp.v1.t.h.link.agent1."+link.NewInstance()+".down", append([]byte{0, 1}, hello...))
			synctest.Wait()
		}
		e.join("relay1")
	})
}
