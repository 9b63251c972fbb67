package routing_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// A reports records what a relay passes to its Report function.
type reports struct {
	mu  sync.Mutex
	all []routing.Report
}

func (r *reports) add(one routing.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, one)
}

// take waits for a second, and returns the reports since its last call.
func (r *reports) take() (list []routing.Report) {
	time.Sleep(time.Second)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.all = r.all, nil
	return list
}

// TestReportsCarryTheLatestState makes a host-agent report a connection's state 1000 times within a
// second. The relay must receive about six reports. Their counts must add up, and the last
// must have the newest state. It must receive a report after the connection's end too. A state that is too large
// must be omitted.
func TestReportsCarryTheLatestState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var told reports
		w := newWorldWith(1, routing.AgentEndConfig{}, routing.RelayEndConfig{Report: told.add})
		defer w.end()
		c := w.dial(0)
		var number atomic.Int64
		counted := int64(0)
		report := func() routing.Report {
			n, before := number.Load(), counted
			counted = n
			return routing.Report{Conn: "c1", State: fmt.Appendf(nil, `{"n":%d}`, n), Counts: []routing.Count{{Kind: "a", Class: "b_1", N: n - before}}}
		}
		change := func() {
			number.Add(1)
			c.host.conn.Report(report)
		}
		for range 1000 { // all within one second
			change()
			time.Sleep(time.Millisecond)
		}
		list := told.take()
		sum := int64(0)
		for _, r := range list {
			sum += r.Counts[0].N
		}
		if n := len(list); n < 2 || n > 7 || sum != 1000 || string(list[n-1].State) != `{"n":1000}` {
			t.Errorf("%d reports with %d counted warnings were sent, the last %v; want 2 to 7 with 1000, and the last state", n, sum, list[n-1])
		}

		c.conn.Close(ahp.CloseResync, "")
		time.Sleep(time.Second)
		change()
		if list := told.take(); len(list) != 1 || string(list[0].State) != `{"n":1001}` {
			t.Errorf("reports after the connection's end: %v; want one", list)
		}

		large := []byte(`{"x":"` + strings.Repeat("x", routing.MaxReport) + `"}`)
		c.host.conn.Report(func() routing.Report { return routing.Report{Conn: "c1", State: large} })
		if list := told.take(); len(list) != 1 || list[0].State != nil || list[0].Conn != "c1" {
			t.Errorf("a state above the bound: %d reports; want one, without the state", len(list))
		}
		w.stop()
		time.Sleep(time.Second)
		change() // must not block or panic although no relay is left
	})
}

// TestReportsOfMany reports on 201 connections at once. All reports must arrive.
func TestReportsOfMany(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var told reports
		w := newWorldWith(1, routing.AgentEndConfig{}, routing.RelayEndConfig{Report: told.add})
		defer w.end()
		c := w.dial(0)
		var others []*clientConn
		for range 200 {
			others = append(others, w.dial(0))
		}
		for i, o := range append(others, c) {
			o.host.conn.Report(func() routing.Report { return routing.Report{Conn: fmt.Sprint(i)} })
		}
		if list := told.take(); len(list) != 201 {
			t.Errorf("%d reports were sent for many connections; want 201", len(list))
		}
	})
}
