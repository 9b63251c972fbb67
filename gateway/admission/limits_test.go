package admission

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
)

// unlimited returns Limits without any bound, after change has modified them.
func unlimited(change func(*Limits)) Limits {
	none := Limit{Connections: -1, Pending: -1, Frames: -1, Bytes: -1, Opens: -1}
	l := Limits{Address: none, Subject: none, Token: none, Host: none, Tenant: none, Failures: -1}
	change(&l)
	return l
}

func visitor(subject, token string, max int) auth.Client {
	return auth.Client{ID: token, Tenant: "default", Subject: subject, Hosts: []string{auth.AllHosts}, MaxConnections: max}
}

// A Limiter admits three connections under a limit of three, and refuses the fourth
// until an earlier connection leaves. Under the limit for pending connections, it does
// so until an earlier connection opens.
func TestConnectionsAboveALimitAreRefused(t *testing.T) {
	limitOf := func(n int) *Limit { return &Limit{Connections: n, Pending: -1, Frames: -1, Bytes: -1} }
	for _, test := range []struct {
		name    string
		limits  func(*Limits)
		connect func(l *Limiter, i int) (*Admission, *OverLimit)
		want    string
	}{
		{"address", func(l *Limits) { l.Address = *limitOf(3) }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), "192.0.2.1")
		}, "connections of this address"},
		{"address of IPv6", func(l *Limits) { l.Address = *limitOf(3) }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("2001:db8::%d", i))
		}, "connections of this address"},
		{"subject", func(l *Limits) { l.Subject = *limitOf(3) }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor("ada", fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this subject"},
		{"token", func(*Limits) {}, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor("ada", "one", 3), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this token"},
		{"host", func(l *Limits) { l.Host = *limitOf(3) }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), "laptop", fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this host"},
		{"tenant", func(l *Limits) { l.Tenant = *limitOf(3) }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this tenant"},
		{"pending", func(l *Limits) { l.Subject = Limit{Connections: -1, Pending: 3, Frames: -1, Bytes: -1} }, func(l *Limiter, i int) (*Admission, *OverLimit) {
			return l.Connect(visitor("ada", fmt.Sprint(i), 0), fmt.Sprint(i), "")
		}, "connections waiting for a host of this subject"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := New(unlimited(test.limits), 1<<20)
			var taken []*Admission
			for i := range 3 {
				a, over := test.connect(l, i)
				if over != nil {
					t.Fatalf("connection %d, within the limit: %v; want it admitted", i, over)
				}
				taken = append(taken, a)
			}
			_, over := test.connect(l, 3)
			if over == nil || over.Limit != test.want || over.Max != 3 || over.Retry <= 0 {
				t.Fatalf("one more than the bound: %+v; want the limit of %s", over, test.want)
			}
			if test.name == "pending" {
				taken[0].Opened()
			} else {
				taken[0].Leave()
				taken[0].Leave() // a second Leave has no effect
			}
			if _, over := test.connect(l, 4); over != nil {
				t.Errorf("a connection after one Leave: %v; want it admitted", over)
			}
			if _, over := test.connect(l, 5); over == nil {
				t.Error("a second connection is admitted after one Leave, called twice; want a refusal")
			}
		})
	}
}

// An enrolment token opens as many connections as its limit allows, and the Limiter
// refuses the next. A different host is still admitted.
func TestAgentConnectionLimit(t *testing.T) {
	l := New(unlimited(func(*Limits) {}), 1<<20)
	host := auth.Enrolment{Tenant: "default", Host: "laptop"}
	for i := range maxAgentConns {
		if _, over := l.ConnectAgent(host, ""); over != nil {
			t.Fatalf("connection %d, within the limit: %v; want it admitted", i, over)
		}
	}
	if _, over := l.ConnectAgent(host, ""); over == nil {
		t.Error("a host-agent's connection beyond the limit is admitted; want it refused")
	}
	if _, over := l.ConnectAgent(auth.Enrolment{Tenant: "default", Host: "desktop"}, ""); over != nil {
		t.Errorf("a different host's connection: %v; want it admitted", over)
	}
}

// A host exchanges credentials without a pause. Relays must remember each exchange, so
// the Limiter refuses more than tradesAtOnce until tradesEvery has passed. A different
// host is still admitted.
func TestTradesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{}.WithDefaults(), 1<<20)
		host := auth.Enrolment{Tenant: "default", Host: "laptop"}
		for i := range tradesAtOnce {
			if over := l.Traded(host); over != nil {
				t.Fatalf("trade %d, within the bound: %v; want it admitted", i, over)
			}
		}
		if over := l.Traded(host); over == nil || over.Retry != tradesEvery {
			t.Errorf("a trade beyond the bound: %+v; want a refusal until %v later", over, tradesEvery)
		}
		if over := l.Traded(auth.Enrolment{Tenant: "default", Host: "desktop"}); over != nil {
			t.Errorf("a different host's trade: %v; want it admitted", over)
		}
		time.Sleep(tradesEvery)
		if over := l.Traded(host); over != nil {
			t.Errorf("a trade after %v: %v; want it admitted", tradesEvery, over)
		}
	})
}

// Two connections send messages under a rate limit. A burst passes at once, further
// messages wait, and the Limiter refuses a message whose wait would exceed maxDelay.
func TestRatesDelayAndThenRefuse(t *testing.T) {
	for _, rate := range []struct {
		name  string
		limit Limit
		bytes int
	}{
		{"messages a second", Limit{Connections: -1, Pending: -1, Frames: 10, Bytes: -1}, 1},
		{"bytes a second", Limit{Connections: -1, Pending: -1, Frames: -1, Bytes: 1000}, 100},
	} {
		for _, of := range []struct {
			name string
			set  func(*Limits)
		}{
			{"address", func(l *Limits) { l.Address = rate.limit }},
			{"subject", func(l *Limits) { l.Subject = rate.limit }},
			{"host", func(l *Limits) { l.Host = rate.limit }},
			{"tenant", func(l *Limits) { l.Tenant = rate.limit }},
		} {
			t.Run(of.name+" "+rate.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := New(unlimited(of.set), 500)
					one, _ := l.Connect(visitor("ada", "1", 0), "laptop", "192.0.2.1")
					two, _ := l.Connect(visitor("ada", "2", 0), "laptop", "192.0.2.1")
					begin := time.Now()
					for range 100 { // the burst: the rate's messages for 10 s
						if over := one.AwaitRate(t.Context(), rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					if waited := time.Since(begin); waited > 0 {
						t.Errorf("a burst within the limit waited %v; want no wait", waited)
					}
					for range 20 {
						if over := two.AwaitRate(t.Context(), rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					if waited := time.Since(begin); waited != 2*time.Second {
						t.Errorf("20 more messages, above the rate, waited %v; want 2s", waited)
					}
					gone, cancel := context.WithCancel(t.Context())
					cancel()
					for range 100 {
						if over := one.AwaitRate(gone, rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					for range 2 { // a refused message uses up nothing, so both get the same wait
						over := two.AwaitRate(t.Context(), rate.bytes, false)
						if over == nil || over.Limit != rate.name+" of this "+of.name || over.Retry < maxDelay || over.Retry > maxDelay+time.Second {
							t.Fatalf("a message beyond the rate: %+v; want it refused with the time to wait", over)
						}
					}
				})
			})
		}
	}
}

// Each scope with a rate of new connections admits a burst up to its connection limit,
// and then connections at the rate. A refused connection uses up nothing: a different
// client is admitted at once, and the same client after its Retry-After.
func TestOpensAreLimited(t *testing.T) {
	limit := Limit{Connections: 30, Pending: -1, Frames: -1, Bytes: -1, Opens: 2}
	for _, of := range []struct {
		name string
		set  func(*Limits)
		who  auth.Client
		host string
		from string // address
	}{
		{"address", func(l *Limits) { l.Address = limit }, visitor("bob", "2", 0), "desktop", "192.0.2.1"},
		{"subject", func(l *Limits) { l.Subject = limit }, visitor("ada", "2", 0), "desktop", "192.0.2.2"},
		{"token", func(l *Limits) { l.Token = limit }, visitor("ada", "1", 0), "desktop", "192.0.2.2"},
		{"host", func(l *Limits) { l.Host = limit }, visitor("bob", "2", 0), "laptop", "192.0.2.2"},
		{"tenant", func(l *Limits) { l.Tenant = limit }, visitor("bob", "2", 0), "desktop", "192.0.2.2"},
	} {
		t.Run(of.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := New(unlimited(func(l *Limits) { of.set(l); l.Subject.Connections = cmp.Or(l.Subject.Connections, -1) }), 1<<20)
				come := func(who auth.Client, host, from string) *OverLimit {
					a, over := l.Connect(who, host, from)
					if over == nil {
						a.Leave()
					}
					return over
				}
				ada := visitor("ada", "1", 0)
				for i := range 30 {
					if over := come(ada, "laptop", "192.0.2.1"); over != nil {
						t.Fatalf("connection %d, within the burst: %v; want it admitted", i, over)
					}
				}
				for range 1000 {
					over := come(of.who, of.host, of.from)
					if over == nil || over.Limit != opensName+of.name || over.Max != 2 || over.Retry <= 0 || over.Retry > 500*time.Millisecond {
						t.Fatalf("an open beyond the burst: %+v; want it refused by the limit for opens", over)
					}
				}
				other := visitor("carol", "3", 0)
				other.Tenant = "other"
				if over := come(other, "server", "192.0.2.3"); over != nil {
					t.Errorf("a different tenant's open: %v; want it admitted", over)
				}
				time.Sleep(500 * time.Millisecond)
				if over := come(of.who, of.host, of.from); over != nil {
					t.Errorf("an open half a second later: %v; want it admitted", over)
				}
				if over := come(ada, "laptop", "192.0.2.1"); over == nil {
					t.Error("two opens are admitted in the time for one; want the second refused")
				}
			})
		})
	}
}

// After a relay's restart, a client reconnects all connections its token may have. The
// Limiter admits them at once, and refuses the next.
func TestAllComeBackAtOnce(t *testing.T) {
	for name, test := range map[string]struct{ max, want int }{
		"the token says how many": {300, 300},
		"the token has no limit":  {0, 500},
		"the rate allows as many": {5, 20}, // each connection leaves before the next comes
	} {
		synctest.Test(t, func(t *testing.T) {
			l := New(Limits{Subject: Limit{Connections: 500}, Token: Limit{Opens: 2}}.WithDefaults(), 1<<20)
			for i := range test.want {
				a, over := l.Connect(visitor("ci", "1", test.max), "laptop", "")
				if over != nil {
					t.Fatalf("%s: connection %d: %v; want it admitted", name, i, over)
				}
				if test.max > 0 && test.max < test.want {
					a.Leave()
				}
			}
			if _, over := l.Connect(visitor("ci", "1", test.max), "laptop", ""); over == nil {
				t.Errorf("%s: %d connections at once are admitted; want the last refused", name, test.want+1)
			}
		})
	}
}

// For a second, a client opens connections far above its token's rate, and most are
// refused. 500 clients with different tokens at its address are then still admitted.
func TestLimitedTokenDoesNotExhaustItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{}.WithDefaults(), 1<<20)
		in := 0
		for range 5000 { // within a second
			if a, over := l.Connect(visitor("guest", "link", 64), "laptop", "192.0.2.1"); over == nil {
				in++
				a.Leave()
			}
			time.Sleep(200 * time.Microsecond)
		}
		if most := DefaultLimits.Token.Opens * (int(RateWindow/time.Second) + 1); in < 1 || in > most {
			t.Errorf("a limited token opened %d connections in a second; want at least 1 and at most %d", in, most)
		}
		for i := range 500 { // 500 people at the address reconnect
			if _, over := l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), "laptop", "192.0.2.1"); over != nil {
				t.Fatalf("visitor %d: %v; want it admitted", i, over)
			}
		}
	})
}

// A client that sends initialize repeatedly uses up its token's rate of new
// connections: the tenth initialize waits a second. A message with a different method
// does not wait.
func TestRepeatedInitializeCountsAsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(unlimited(func(l *Limits) { l.Token = Limit{Opens: 1} }), 1<<20)
		a, over := l.Connect(visitor("ada", "1", 0), "laptop", "")
		if over != nil {
			t.Fatal(over)
		}
		begin := time.Now()
		for range 9 {
			if over := a.AwaitRate(t.Context(), 1, true); over != nil {
				t.Fatal(over)
			}
		}
		if time.Since(begin) > 0 {
			t.Error("a message within the limits waited; want no wait")
		}
		if over := a.AwaitRate(t.Context(), 1, true); over != nil || time.Since(begin) != time.Second {
			t.Errorf("an initialize beyond the rate: %v after %v; want it admitted after 1s", over, time.Since(begin))
		}
		if over := a.AwaitRate(t.Context(), 1, false); over != nil || time.Since(begin) != time.Second {
			t.Errorf("a message of a different kind: %v after %v; want it admitted at once", over, time.Since(begin))
		}
	})
}

// Under a limit of 1 MiB per second, a message of the maximum length (32 MiB) passes at
// once. Only the next message waits.
func TestLongestMessageFitsEachLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(unlimited(func(l *Limits) { l.Subject.Bytes = 1 << 20 }), 32<<20)
		a, _ := l.Connect(visitor("ada", "1", 0), "laptop", "")
		begin := time.Now()
		if over := a.AwaitRate(t.Context(), 32<<20, false); over != nil || time.Since(begin) > 0 {
			t.Errorf("AwaitRate of the longest message waits %v, %v; want no wait, no error", time.Since(begin), over)
		}
		if over := a.AwaitRate(t.Context(), 1<<20, false); over != nil || time.Since(begin) != time.Second {
			t.Errorf("AwaitRate of the message after the longest waits %v, %v; want 1s", time.Since(begin), over)
		}
	})
}

// Under the default limits, a stock client uploads 32 MiB and subscribes to 200
// channels at once, from each of five windows. No message waits.
func TestStockClientMeetsNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{}.WithDefaults(), 32<<20)
		begin := time.Now()
		for i := range 5 {
			a, over := l.Connect(visitor("ada", "1", 0), "laptop", "192.0.2.1")
			if over != nil {
				t.Fatal(over)
			}
			sizes := append(make([]int, 200), 32<<20)
			for n, size := range sizes {
				if over := a.AwaitRate(t.Context(), max(size, 200), false); over != nil {
					t.Fatalf("window %d, message %d: %v; want no refusal", i, n, over)
				}
			}
		}
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("a client of the usual kind waits %v; want no wait", waited)
		}
	})
}

// Many different subjects and addresses come and go. The Limiter forgets idle parties
// above maxIdle, but keeps a party with an open connection.
func TestLimitTablesAreBounded(t *testing.T) {
	l := New(Limits{Host: Limit{Opens: -1}, Tenant: Limit{Opens: -1}}.WithDefaults(), 1<<20)
	kept, over := l.Connect(visitor("kept", "kept", 0), "laptop", "192.0.2.1")
	if over != nil {
		t.Fatal(over)
	}
	for i := range maxIdle + maxIdle/8 {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()
		a, over := l.Connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 1), "laptop", address)
		if over != nil {
			t.Fatal(over)
		}
		a.Leave()
		l.Failed(address, "")
	}
	if n := len(l.scopes); n > maxIdle+10 {
		t.Errorf("%d parties are remembered; want at most %d", n, maxIdle)
	}
	if p := l.scopes[scopeKey{"subject", "default" + " kept"}]; p == nil || p.connections != 1 {
		t.Error("the limits forgot a subject with an open connection; want it kept")
	}
	kept.Leave()
	kept, _ = l.Connect(visitor("kept", "kept", 0), "laptop", "192.0.2.1")
	if p := kept.scopes[1]; p.connections != 1 {
		t.Errorf("%d connections are counted; want 1", p.connections)
	}
}

// BenchmarkLimits measures AwaitRate for a client with limits per address, subject,
// host and tenant.
func BenchmarkLimits(b *testing.B) {
	l := New(unlimited(func(l *Limits) {
		plenty := Limit{Connections: 10, Pending: 10, Frames: 1 << 40, Bytes: 1 << 50}
		*l = Limits{Address: plenty, Subject: plenty, Host: plenty, Tenant: plenty}
	}), 32<<20)
	a, over := l.Connect(visitor("ada", "1", 2), "laptop", "192.0.2.1")
	if over != nil {
		b.Fatal(over)
	}
	b.ReportAllocs()
	for b.Loop() {
		if over := a.AwaitRate(b.Context(), 1000, false); over != nil {
			b.Fatal(over)
		}
	}
}
