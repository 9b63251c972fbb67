package broker_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
)

// TestHostAgentDialsOnlyWithCredentials gives a host-agent no credentials for a minute. It must ask
// for them again and again, and open no connection, which could not log in. With credentials it
// must dial.
func TestHostAgentDialsOnlyWithCredentials(t *testing.T) {
	t.Parallel()
	key, userJWT := newAgentUser(t)
	for _, scheme := range []string{"nats", "ws"} {
		synctest.Test(t, func(t *testing.T) {
			var asked, dialled atomic.Int32
			var given atomic.Bool
			cfg := broker.AgentDialConfig{
				URLs: []string{scheme + "://relay.example:1"}, Tenant: "acme", Host: "laptop", Instance: "agent-1",
				Sign: key.SignNonce,
				Credentials: func(context.Context) (string, error) {
					asked.Add(1)
					if given.Load() {
						return userJWT, nil
					}
					return "", errors.New("the relay is busy")
				},
				Dial: func(context.Context, string, string) (net.Conn, error) {
					dialled.Add(1)
					return nil, errors.New("no network in this test")
				},
			}
			agent, err := broker.DialAgent(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer agent.Close()
			time.Sleep(time.Minute)
			if asked.Load() < 5 || dialled.Load() > 0 {
				t.Errorf("%s: the host-agent made %d requests for credentials and %d connections without them; want at least 5 requests and no connection", scheme, asked.Load(), dialled.Load())
			}
			given.Store(true)
			time.Sleep(time.Minute)
			if dialled.Load() == 0 {
				t.Errorf("%s: the host-agent has credentials and does not connect; want a connection", scheme)
			}
		})
	}
}

// TestHostAgentReturnsAtTheGivenTime has relays that refuse credentials until a time. The host-agent
// must ask again at that time, neither before nor later, and log in without a further delay. With
// several relays, it must log in at the first one, at which it has attempted nothing yet.
func TestHostAgentReturnsAtTheGivenTime(t *testing.T) {
	t.Parallel()
	key, userJWT := newAgentUser(t)
	for _, urls := range [][]string{{"ws://one.example:1"}, {"ws://one.example:1", "ws://two.example:1", "ws://three.example:1"}} {
		synctest.Test(t, func(t *testing.T) {
			const pause = 90 * time.Second
			began := time.Now()
			var asked atomic.Int32
			dialled := make(chan string, 100)
			agent, err := broker.DialAgent(t.Context(), broker.AgentDialConfig{
				URLs: urls, Tenant: "acme", Host: "laptop", Instance: "agent-1", Sign: key.SignNonce,
				Credentials: func(context.Context) (string, error) {
					asked.Add(1)
					if until := began.Add(pause); time.Now().Before(until) {
						return "", &broker.PauseError{Err: errors.New("the relay is busy"), Until: until}
					}
					return userJWT, nil
				},
				Dial: func(_ context.Context, _, address string) (net.Conn, error) {
					dialled <- address
					return nil, errors.New("no network in this test")
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer agent.Close()
			if address := <-dialled; address != "one.example:1" || time.Since(began) != pause {
				t.Errorf("the host-agent logs in at %s after %v; want one.example:1 after %v", address, time.Since(began), pause)
			}
			if n := asked.Load(); n > 3 {
				t.Errorf("the host-agent asked %d times for credentials; want at most 3", n)
			}
		})
	}
}

// newAgentUser returns the key and the credentials of a host-agent for acme's host laptop.
func newAgentUser(t *testing.T) (key *auth.AgentKey, userJWT string) {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, err = auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	userJWT, _, err = keys.Authority().AgentUser("acme", "laptop", key.Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return key, userJWT
}
