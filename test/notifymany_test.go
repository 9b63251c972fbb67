package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/notice"
	"ahprelay/refhost"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// size reads how much is to be done.
func size(name string, byDefault int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return byDefault
}

// TestNotifyMany has the sessions of many hosts ask, one after the other on each, while
// the relay is stopped and another started in its place: each is pushed once. It prints how
// long that took, for the sessions that asked while a relay was there. AHP_NOTIFY_HOSTS and
// AHP_NOTIFY_SESSIONS, of each host, say how many.
func TestNotifyMany(t *testing.T) {
	t.Parallel()
	hosts, sessions := size("AHP_NOTIFY_HOSTS", 3), size("AHP_NOTIFY_SESSIONS", 6)
	cfg := onLoopback()
	cfg.Listen = freePort(t)
	s := startNotifying(t, refhost.Protocol10, cfg)
	service := newPushService(t)
	subscribe(t, s, service, false, nil)

	ctx, cancel := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		agents.Wait()
	})
	users := make([]*refclient.Client, hosts)
	for i := range users {
		_, server := newRefhost(t, nil)
		startHostAgent(t, ctx, s, &agents, fmt.Sprintf("host-%d", i), server.URL())
		var err error
		if users[i], err = refclient.Dial(ctx, server.URL(), refclient.Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := users[i].Initialize(ctx, refclient.InitializeParams{ClientID: "user", ProtocolVersions: []string{"0.9.0"}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range users {
		awaitHost(t, s, fmt.Sprintf("host-%d", i))
	}

	asked := make(map[string]time.Time, hosts*sessions)
	round := func(n int) {
		for i, c := range users {
			session := fmt.Sprintf("demo:/%d-%d", i, n)
			asked[fmt.Sprintf("host-%d %s", i, session)] = time.Now()
			ask(t, c, session, "t")
		}
	}
	var took []time.Duration
	told := map[string]int{}
	hear := func(timed bool) {
		p := service.next()
		if p.Kind != notice.Approval {
			return
		}
		key := p.Host + " " + p.Session
		told[key]++
		if timed && told[key] == 1 {
			took = append(took, p.at.Sub(asked[key]))
		}
	}
	half := sessions / 2
	for n := range half {
		round(n)
	}
	for len(told) < hosts*half {
		hear(true)
	}
	s.Relay.Close()
	for n := half; n < sessions; n++ {
		round(n)
	}
	if err := s.StartRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
	for len(told) < hosts*sessions {
		hear(false)
	}
	for i := range users {
		awaitHost(t, s, fmt.Sprintf("host-%d", i))
	}
	round(sessions) // behind which nothing is told that was told before
	for len(told) < hosts*(sessions+1) {
		hear(true)
	}
	for key, n := range told {
		if n != 1 {
			t.Errorf("%s was told %d times; want once", key, n)
		}
	}
	slices.Sort(took)
	t.Logf("%d sessions on %d hosts: pushed within %v (median), %v (99 of 100)", len(told), hosts, took[len(took)/2], took[len(took)*99/100])
}

// startHostAgent starts a host-agent beside that of the stack, and ends it with ctx.
func startHostAgent(t *testing.T, ctx context.Context, s *stack.Stack, agents *sync.WaitGroup, name, upstream string) {
	t.Helper()
	token, err := s.HostToken(name)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{s.Relay.URL()}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: upstream}, Notify: hostagent.NotifyNeeds,
	})
	if err != nil {
		t.Fatal(err)
	}
	agents.Go(func() {
		if err := agent.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("host-agent of %s: %v", name, err)
		}
	})
}

// awaitHost waits until a host is online.
func awaitHost(t *testing.T, s *stack.Stack, name string) {
	t.Helper()
	for end := time.Now().Add(stepTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		info, status := api[struct{ State string }](t, s, "GET", "/api/hosts/"+name, nil, func(*auth.Client) {})
		if status == 200 && info.State == "online" {
			return
		}
	}
	t.Fatalf("%s does not come online", name)
}
