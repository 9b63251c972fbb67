package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"
)

// unlimited are limits that nobody meets, with a change.
func unlimited(change func(*Limits)) Limits {
	none := Limit{Connections: -1, Pending: -1, Frames: -1, Bytes: -1, Opens: -1}
	l := Limits{Address: none, Subject: none, Token: none, Host: none, Tenant: none, Failures: -1}
	change(&l)
	return l
}

func visitor(subject, token string, max int) auth.Client {
	return auth.Client{ID: token, Tenant: testTenant, Subject: subject, Hosts: []string{auth.AllHosts}, MaxConnections: max}
}

// TestConnectionLimits admits connections up to each limit, one more, and one more
// after another was given back.
func TestConnectionLimits(t *testing.T) {
	limitOf := func(n int) *Limit { return &Limit{Connections: n, Pending: -1, Frames: -1, Bytes: -1} }
	for _, test := range []struct {
		name    string
		limits  func(*Limits)
		connect func(l *limiter, i int) (*admission, *overLimit)
		want    string
	}{
		{"address", func(l *Limits) { l.Address = *limitOf(3) }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), "192.0.2.1")
		}, "connections of this address"},
		{"address of IPv6", func(l *Limits) { l.Address = *limitOf(3) }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("2001:db8::%d", i))
		}, "connections of this address"},
		{"subject", func(l *Limits) { l.Subject = *limitOf(3) }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor("ada", fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this subject"},
		{"token", func(*Limits) {}, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor("ada", "one", 3), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this token"},
		{"host", func(l *Limits) { l.Host = *limitOf(3) }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), testHost, fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this host"},
		{"tenant", func(l *Limits) { l.Tenant = *limitOf(3) }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), fmt.Sprint(i), fmt.Sprintf("192.0.2.%d", i))
		}, "connections of this tenant"},
		{"pending", func(l *Limits) { l.Subject = Limit{Connections: -1, Pending: 3, Frames: -1, Bytes: -1} }, func(l *limiter, i int) (*admission, *overLimit) {
			return l.connect(visitor("ada", fmt.Sprint(i), 0), fmt.Sprint(i), "")
		}, "connections that wait for a host of this subject"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLimiter(unlimited(test.limits), 1<<20)
			var taken []*admission
			for i := range 3 {
				a, over := test.connect(l, i)
				if over != nil {
					t.Fatalf("connection %d: %v", i, over)
				}
				taken = append(taken, a)
			}
			_, over := test.connect(l, 3)
			if over == nil || over.Limit != test.want || over.Max != 3 || over.Retry <= 0 {
				t.Fatalf("one more: %+v; want the limit of %s", over, test.want)
			}
			if test.name == "pending" {
				taken[0].opened()
			} else {
				taken[0].leave()
				taken[0].leave() // counts once
			}
			if _, over := test.connect(l, 4); over != nil {
				t.Errorf("after one was given back: %v", over)
			}
			if _, over := test.connect(l, 5); over == nil {
				t.Error("two were given back for one")
			}
		})
	}
}

// TestAgentConnectionLimit bounds what one enrolment token can open, beside
// what that of another host can.
func TestAgentConnectionLimit(t *testing.T) {
	l := newLimiter(unlimited(func(*Limits) {}), 1<<20)
	host := auth.Enrolment{Tenant: testTenant, Host: testHost}
	for i := range maxAgentConns {
		if _, over := l.connectAgent(host, ""); over != nil {
			t.Fatalf("connection %d: %v", i, over)
		}
	}
	if _, over := l.connectAgent(host, ""); over == nil {
		t.Error("one more is taken")
	}
	if _, over := l.connectAgent(auth.Enrolment{Tenant: testTenant, Host: "desktop"}, ""); over != nil {
		t.Errorf("another host: %v", over)
	}
}

// TestTradesAreBounded has a host trade credentials all the time: each is to
// be remembered.
func TestTradesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{}.withDefaults(), 1<<20)
		host := auth.Enrolment{Tenant: testTenant, Host: testHost}
		for i := range tradesAtOnce {
			if over := l.traded(host); over != nil {
				t.Fatalf("trade %d: %v", i, over)
			}
		}
		if over := l.traded(host); over == nil || over.Retry != tradesEvery {
			t.Errorf("one more: %+v; want to wait %v", over, tradesEvery)
		}
		if over := l.traded(auth.Enrolment{Tenant: testTenant, Host: "desktop"}); over != nil {
			t.Errorf("another host: %v", over)
		}
		time.Sleep(tradesEvery)
		if over := l.traded(host); over != nil {
			t.Errorf("after %v: %v", tradesEvery, over)
		}
	})
}

// TestRateLimits has each rate of each party hold messages back, and refuse
// those that would wait too long.
func TestRateLimits(t *testing.T) {
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
					l := newLimiter(unlimited(of.set), 500)
					one, _ := l.connect(visitor("ada", "1", 0), testHost, "192.0.2.1")
					two, _ := l.connect(visitor("ada", "2", 0), testHost, "192.0.2.1")
					begin := time.Now()
					for range 100 { // what 10 s allow
						if over := one.awaitRate(t.Context(), rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					if waited := time.Since(begin); waited > 0 {
						t.Errorf("a burst waited %v", waited)
					}
					for range 20 {
						if over := two.awaitRate(t.Context(), rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					if waited := time.Since(begin); waited != 2*time.Second {
						t.Errorf("20 more waited %v; want 2s", waited)
					}
					gone, cancel := context.WithCancel(t.Context())
					cancel()
					for range 100 {
						if over := one.awaitRate(gone, rate.bytes, false); over != nil {
							t.Fatal(over)
						}
					}
					for range 2 { // a refused one takes nothing
						over := two.awaitRate(t.Context(), rate.bytes, false)
						if over == nil || over.Limit != rate.name+" of this "+of.name || over.Retry < maxDelay || over.Retry > maxDelay+time.Second {
							t.Fatalf("too many: %+v", over)
						}
					}
				})
			})
		}
	}
}

// TestOpensAreLimited has each party come as often as it may: at once as often
// as it may be connected, and then at its rate. What is refused takes nothing of
// anybody's, so others are let in, and so is the same party after the time that
// it was told.
func TestOpensAreLimited(t *testing.T) {
	limit := Limit{Connections: 30, Pending: -1, Frames: -1, Bytes: -1, Opens: 2}
	for _, of := range []struct {
		name string
		set  func(*Limits)
		who  auth.Client
		host string
		from string // where from
	}{
		{"address", func(l *Limits) { l.Address = limit }, visitor("bob", "2", 0), "desktop", "192.0.2.1"},
		{"subject", func(l *Limits) { l.Subject = limit }, visitor("ada", "2", 0), "desktop", "192.0.2.2"},
		{"token", func(l *Limits) { l.Token = limit }, visitor("ada", "1", 0), "desktop", "192.0.2.2"},
		{"host", func(l *Limits) { l.Host = limit }, visitor("bob", "2", 0), testHost, "192.0.2.2"},
		{"tenant", func(l *Limits) { l.Tenant = limit }, visitor("bob", "2", 0), "desktop", "192.0.2.2"},
	} {
		t.Run(of.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(unlimited(func(l *Limits) { of.set(l); l.Subject.Connections = cmp.Or(l.Subject.Connections, -1) }), 1<<20)
				come := func(who auth.Client, host, from string) *overLimit {
					a, over := l.connect(who, host, from)
					if over == nil {
						a.leave()
					}
					return over
				}
				ada := visitor("ada", "1", 0)
				for i := range 30 {
					if over := come(ada, testHost, "192.0.2.1"); over != nil {
						t.Fatalf("connection %d: %v", i, over)
					}
				}
				for range 1000 {
					over := come(of.who, of.host, of.from)
					if over == nil || over.Limit != opensName+of.name || over.Max != 2 || over.Retry <= 0 || over.Retry > 500*time.Millisecond {
						t.Fatalf("one too many: %+v", over)
					}
				}
				other := visitor("carol", "3", 0)
				other.Tenant = "other"
				if over := come(other, "server", "192.0.2.3"); over != nil {
					t.Errorf("somebody else: %v", over)
				}
				time.Sleep(500 * time.Millisecond)
				if over := come(of.who, of.host, of.from); over != nil {
					t.Errorf("in its time: %v", over)
				}
				if over := come(ada, testHost, "192.0.2.1"); over == nil {
					t.Error("two are let in for one")
				}
			})
		})
	}
}

// TestAllComeBackAtOnce has a relay restart: all connections that a token may
// have had come at once, and more do not.
func TestAllComeBackAtOnce(t *testing.T) {
	for name, test := range map[string]struct{ max, want int }{
		"the token says how many": {300, 300},
		"the token has no limit":  {0, 500},
		"the rate allows as many": {5, 20}, // one after another
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(Limits{Subject: Limit{Connections: 500}, Token: Limit{Opens: 2}}.withDefaults(), 1<<20)
			for i := range test.want {
				a, over := l.connect(visitor("ci", "1", test.max), testHost, "")
				if over != nil {
					t.Fatalf("%s: connection %d: %v", name, i, over)
				}
				if test.max > 0 && test.max < test.want {
					a.leave()
				}
			}
			if _, over := l.connect(visitor("ci", "1", test.max), testHost, ""); over == nil {
				t.Errorf("%s: %d come at once; want that to be the most", name, test.want+1)
			}
		})
	}
}

// TestOneTokenLeavesItsAddress has somebody use up what a token may, again and
// again; others with that address come as before.
func TestOneTokenLeavesItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{}.withDefaults(), 1<<20)
		in := 0
		for range 5000 { // in a second
			if a, over := l.connect(visitor("guest", "link", 64), testHost, "192.0.2.1"); over == nil {
				in++
				a.leave()
			}
			time.Sleep(200 * time.Microsecond)
		}
		if most := defaultLimits.Token.Opens * (int(rateWindow/time.Second) + 1); in < 1 || in > most {
			t.Errorf("%d connections in a second; want some, and at most %d", in, most)
		}
		for i := range 500 { // an office comes back
			if _, over := l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 0), testHost, "192.0.2.1"); over != nil {
				t.Fatalf("visitor %d: %v", i, over)
			}
		}
	})
}

// TestBeginningAnew on one connection counts like coming.
func TestBeginningAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(unlimited(func(l *Limits) { l.Token = Limit{Opens: 1} }), 1<<20)
		a, over := l.connect(visitor("ada", "1", 0), testHost, "")
		if over != nil {
			t.Fatal(over)
		}
		begin := time.Now()
		for range 9 {
			if over := a.awaitRate(t.Context(), 1, true); over != nil {
				t.Fatal(over)
			}
		}
		if time.Since(begin) > 0 {
			t.Error("what is allowed at once waited")
		}
		if over := a.awaitRate(t.Context(), 1, true); over != nil || time.Since(begin) != time.Second {
			t.Errorf("one more: %v after %v; want it after 1s", over, time.Since(begin))
		}
		if over := a.awaitRate(t.Context(), 1, false); over != nil || time.Since(begin) != time.Second {
			t.Errorf("another message: %v after %v; want it at once", over, time.Since(begin))
		}
	})
}

// TestLongestMessage fits, whatever the limit.
func TestLongestMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(unlimited(func(l *Limits) { l.Subject.Bytes = 1 << 20 }), 32<<20)
		a, _ := l.connect(visitor("ada", "1", 0), testHost, "")
		begin := time.Now()
		if over := a.awaitRate(t.Context(), 32<<20, false); over != nil || time.Since(begin) > 0 {
			t.Errorf("the first waits %v, %v", time.Since(begin), over)
		}
		if over := a.awaitRate(t.Context(), 1<<20, false); over != nil || time.Since(begin) != time.Second {
			t.Errorf("the next waits %v, %v; want 1s", time.Since(begin), over)
		}
	})
}

// TestStockClientMeetsNoLimit uploads 32 MiB and subscribes to 200 channels at
// once, from each of five windows.
func TestStockClientMeetsNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{}.withDefaults(), 32<<20)
		begin := time.Now()
		for i := range 5 {
			a, over := l.connect(visitor("ada", "1", 0), testHost, "192.0.2.1")
			if over != nil {
				t.Fatal(over)
			}
			sizes := append(make([]int, 200), 32<<20)
			for n, size := range sizes {
				if over := a.awaitRate(t.Context(), max(size, 200), false); over != nil {
					t.Fatalf("window %d, message %d: %v", i, n, over)
				}
			}
		}
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("it waits %v", waited)
		}
	})
}

// TestLimitTablesAreBounded has ever new subjects and addresses come and go.
func TestLimitTablesAreBounded(t *testing.T) {
	l := newLimiter(Limits{Host: Limit{Opens: -1}, Tenant: Limit{Opens: -1}}.withDefaults(), 1<<20)
	kept, over := l.connect(visitor("kept", "kept", 0), testHost, "192.0.2.1")
	if over != nil {
		t.Fatal(over)
	}
	for i := range 3 * maxIdle {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()
		a, over := l.connect(visitor(fmt.Sprint(i), fmt.Sprint(i), 1), testHost, address)
		if over != nil {
			t.Fatal(over)
		}
		a.leave()
		l.failed(address)
	}
	if n := len(l.scopes); n > maxIdle+10 {
		t.Errorf("%d parties are remembered; want at most %d", n, maxIdle)
	}
	if n := len(l.failures.of); n > maxIdle {
		t.Errorf("failures of %d addresses are remembered; want at most %d", n, maxIdle)
	}
	if p := l.scopes[scopeKey{"subject", testTenant + " kept"}]; p == nil || p.connections != 1 {
		t.Error("a party with a connection was forgotten")
	}
	kept.leave()
	kept, _ = l.connect(visitor("kept", "kept", 0), testHost, "192.0.2.1")
	if p := kept.scopes[1]; p.connections != 1 {
		t.Errorf("%d connections are counted; want 1", p.connections)
	}
}

// TestTooManyConnections answers handshakes that are too many, and tells when
// to come again.
func TestTooManyConnections(t *testing.T) {
	inWorld(t, Config{Limits: Limits{Subject: Limit{Connections: 2}}}, func(w *world) {
		token := w.token(nil)
		first := w.dial(token)
		w.dial(token)
		synctest.Wait()
		w.wantTooMany(token, "limit of 2 connections of this subject")
		if status, _ := w.handshakeStatus(w.token(func(c *auth.Client) { c.Subject = "bob" })); status != http.StatusUpgradeRequired {
			t.Errorf("another subject: HTTP %d", status)
		}
		_ = first.ws.Close(1000, "")
		synctest.Wait()
		if status, said := w.handshakeStatus(token); status != http.StatusUpgradeRequired {
			t.Errorf("after one has left: HTTP %d %s", status, said)
		}
		w.dial(token).wantOpen() // the failed handshake has given its admission back
	})
}

// TestComesTooOften has a link's holder connect and leave all the time: it is
// told to wait before the handshake, the audit has a line for that and not a
// thousand, and another with a good token is let in.
func TestComesTooOften(t *testing.T) {
	var audit syncBuilder
	inWorld(t, Config{AuditFile: &audit}, func(w *world) {
		guest := w.token(func(c *auth.Client) { c.Subject, c.MaxConnections = "guest", 10 })
		in := 0
		for range 1000 {
			if status, _ := w.handshakeStatus(guest); status == http.StatusUpgradeRequired {
				in++
			}
		}
		if want := defaultLimits.Token.Opens * int(rateWindow/time.Second); in != want {
			w.Errorf("%d handshakes were answered as such; want %d", in, want)
		}
		w.wantTooMany(guest, "limit of 10 connections made in a second of this token")
		w.dial(w.token(func(c *auth.Client) { c.Subject = "ada" })).wantOpen()
		time.Sleep(2 * auditEvery)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(audit.String()), "\n")
		if len(lines) != 5 || !strings.Contains(audit.String(), `"count":900}`) { // and ada's
			w.Errorf("the audit has %d lines; want the first and how many of handshakes and of limits, and one more:\n%s", len(lines), audit.String())
		}
	})
}

// TestPendingEnds counts a connection as waiting until its host has taken it.
func TestPendingEnds(t *testing.T) {
	inWorld(t, Config{Limits: Limits{Subject: Limit{Pending: 1}}}, func(w *world) {
		token := w.token(nil)
		first := w.dial(token)
		synctest.Wait()
		w.wantTooMany(token, "limit of 1 connections that wait for a host of this subject")
		w.startAgent(routing.AgentEndConfig{})
		first.wantOpen()
		w.hostConn(1)
		w.dial(token).wantOpen()
		w.hostConn(2)
	})
}

// wantTooMany fails unless a handshake is answered that there are too many.
func (w *world) wantTooMany(token, limit string) {
	w.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer := &hijackable{header: http.Header{}}
	w.server.Handler().ServeHTTP(answer, r)
	retry, err := strconv.Atoi(answer.header.Get("Retry-After"))
	if answer.status != http.StatusTooManyRequests || err != nil || retry < 1 || !strings.Contains(answer.body.String(), limit) {
		w.Errorf("HTTP %d %q, Retry-After %q; want 429 that names the %s", answer.status, answer.body.String(), answer.header.Get("Retry-After"), limit)
	}
}

// TestSlowedDown has a client send faster than it may: it is read later, and
// closed when that does not help, told why.
func TestSlowedDown(t *testing.T) {
	inWorld(t, Config{Limits: Limits{Subject: Limit{Frames: 1}}}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(nil))
		h := w.hostConn(1)
		for i := range 15 {
			w.running.Go(func() { c.request(i, "listSessions") })
			synctest.Wait()
		}
		if n := len(h.messages()); n != 10 {
			w.Errorf("host got %d at once; want 10", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(h.messages()); n != 13 {
			w.Errorf("host got %d after 3 s; want 13", n)
		}
		time.Sleep(time.Minute)
		c.wantOpen()
		if n := len(h.messages()); n != 15 {
			w.Errorf("host got %d; want all 15", n)
		}
		bob := visitor("ada", "other", 0)
		other, _ := w.server.limits.connect(bob, testHost, "")
		gone, cancel := context.WithCancel(w.Context())
		cancel()
		for range 20 { // other connections of the subject take what there is
			if over := other.awaitRate(gone, 1, false); over != nil {
				w.Fatal(over)
			}
		}
		c.request(15, "listSessions")
		synctest.Wait()
		var refused struct {
			ID    int
			Error struct {
				Code int
				Data struct {
					Limit        string
					RetryAfterMs int
				}
			}
		}
		got := c.messages()
		if err := json.Unmarshal([]byte(got[len(got)-1]), &refused); err != nil || refused.ID != 15 || refused.Error.Code != ahp.CodeRateLimited ||
			refused.Error.Data.Limit != "messages a second of this subject" || refused.Error.Data.RetryAfterMs != 11_000 {
			w.Errorf("the request was answered %s", got[len(got)-1])
		}
		c.wantClosed(ahp.CloseOverloaded, "overloaded: limit of 1 messages a second of this subject reached; try again in 11s")
	})
}

// TestFailedAuthentications tells an address that sends bad tokens to stop;
// good ones still pass.
func TestFailedAuthentications(t *testing.T) {
	inWorld(t, Config{Limits: Limits{Failures: 3}}, func(w *world) {
		ask := func(address, token string) *hijackable {
			r, err := http.NewRequest(http.MethodGet, "http://relay/ahp/"+testHost, nil)
			if err != nil {
				w.Fatal(err)
			}
			r.RemoteAddr = address
			r.Header.Set("Authorization", "Bearer "+token)
			answer := &hijackable{header: http.Header{}}
			w.server.Handler().ServeHTTP(answer, r)
			return answer
		}
		const here = "192.0.2.1:1000"
		for range 3 {
			if a := ask(here, "bad"); a.status != http.StatusUnauthorized {
				w.Fatalf("HTTP %d; want 401", a.status)
			}
		}
		if a := ask(here, "bad"); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "20" {
			w.Errorf("one more: HTTP %d, Retry-After %q; want 429, 20", a.status, a.header.Get("Retry-After"))
		}
		if a := ask(here, w.token(nil)); a.status != http.StatusUpgradeRequired {
			w.Errorf("a good token from there: HTTP %d", a.status)
		}
		for _, other := range []string{"192.0.2.2:1000", "127.0.0.1:1000"} {
			for range 3 {
				if a := ask(other, "bad"); a.status != http.StatusUnauthorized {
					w.Errorf("from %s: HTTP %d", other, a.status)
				}
			}
		}
		if a := ask("127.0.0.1:1000", "bad"); a.status != http.StatusUnauthorized {
			w.Errorf("from this machine: HTTP %d; want no limit, it may be a proxy", a.status)
		}
		time.Sleep(20 * time.Second)
		if a := ask(here, "bad"); a.status != http.StatusUnauthorized {
			w.Errorf("after a while: HTTP %d; want 401", a.status)
		}
	})
}

// TestAddress finds where requests come from, with proxies in front.
func TestAddress(t *testing.T) {
	trusting := &Server{cfg: Config{TrustProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}}
	for _, test := range []struct {
		remote    string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:1000", nil, "192.0.2.1"},
		{"[2001:db8::1]:1000", nil, "2001:db8::1"},
		{"[::ffff:192.0.2.1]:1000", nil, "192.0.2.1"},
		// Who is no proxy says nothing of others.
		{"192.0.2.1:1000", []string{"198.51.100.1"}, "192.0.2.1"},
		{"10.0.0.1:1000", nil, "10.0.0.1"},
		{"10.0.0.1:1000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"[fd00::1]:1000", []string{"2001:db8::1"}, "2001:db8::1"},
		{"10.0.0.1:1000", []string{"198.51.100.1:4000"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"[2001:db8::1]:4000"}, "2001:db8::1"},
		{"10.0.0.1:1000", []string{"[2001:db8::1]"}, "2001:db8::1"},
		// What the client itself wrote stands before.
		{"10.0.0.1:1000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"127.0.0.1, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"nonsense, 198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1000", []string{"198.51.100.1, nonsense"}, "10.0.0.1"},
		{"10.0.0.1:1000", []string{""}, "10.0.0.1"},
		{"10.0.0.1:1000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"10.0.0.1:1000", []string{strings.Repeat("10.0.0.2,", 100) + "10.0.0.4"}, "10.0.0.2"},
		{"somewhere", []string{"198.51.100.1"}, "somewhere"},
	} {
		r := &http.Request{RemoteAddr: test.remote, Header: http.Header{"X-Forwarded-For": test.forwarded}}
		if got := trusting.address(r); got != test.want {
			t.Errorf("from %s, forwarded for %.60q: %s; want %s", test.remote, test.forwarded, got, test.want)
		}
	}
}

// FuzzAddress reads any header.
func FuzzAddress(f *testing.F) {
	f.Add("10.0.0.1:1", "198.51.100.1, [::1]:5")
	f.Add("[fe80::1%eth0]:1", "fe80::1%eth0,")
	trusting := &Server{cfg: Config{TrustProxy: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}}
	f.Fuzz(func(t *testing.T, remote, forwarded string) {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {forwarded}}}
		got := trusting.address(r)
		if _, err := netip.ParseAddr(got); err != nil && got != remote {
			t.Errorf("address %q", got)
		}
		addressGroup(got)
	})
}
