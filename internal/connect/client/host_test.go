package client

import (
	"context"
	"fmt"
	"testing"

	"ahprelay/ahp"
)

// answered returns a client whose host gives answers: the result for a request's method and params. The
// host writes the numbers of requests as floating point.
func answered(t *testing.T, result func(method string, params []byte) string) *Client {
	t.Helper()
	c := &Client{out: make(chan []byte), closed: make(chan struct{}), ended: make(chan struct{}), calls: map[string]chan reply{}}
	served := make(chan struct{})
	t.Cleanup(func() {
		close(c.closed)
		<-served
	})
	go func() {
		defer close(served)
		host := (*messages)(c)
		for {
			request, err := host.Read()
			if err != nil {
				return
			}
			env, err := ahp.Peek(request)
			if err != nil {
				t.Errorf("the client sends %s: %v", request, err)
				return
			}
			if err := host.Write(ahp.AppendResult(nil, append(env.ID[:len(env.ID):len(env.ID)], ".0"...), []byte(result(string(env.Method), env.Params)))); err != nil {
				t.Error(err)
			}
		}
	}()
	return c
}

// TestSessionsOfAllPagesAreListed has a host that lists its sessions in pages. Sessions must return
// those of all pages, in the host's order. At a host whose list does not end, the requests must.
func TestSessionsOfAllPagesAreListed(t *testing.T) {
	for name, pages := range map[string]int{"three pages": 3, "an endless list": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			c := answered(t, func(_ string, params []byte) string {
				asked++
				page := 0
				_, _ = fmt.Sscan(ahp.TextOf(params, "cursor"), &page)
				next := fmt.Sprintf("%q", fmt.Sprint(page+1))
				if page == pages-1 {
					next = "null"
				}
				return fmt.Sprintf(`{"items":[{"resource":"x:/%d"}],"nextCursor":%s}`, page, next)
			})
			list, err := c.Sessions(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range list {
				if want := fmt.Sprint("x:/", i); s.Session != want {
					t.Fatalf("session %d is %s; want %s", i, s.Session, want)
				}
			}
			if len(list) < min(pages, 1000) || asked > mostSessions {
				t.Errorf("Sessions has returned %d sessions with %d requests; want all, or many with at most %d requests", len(list), asked, mostSessions)
			}
		})
	}
}

// TestNumbersInAnyNotation has a host that writes numbers as floating point. The client must read the
// serverSeq of a snapshot and of an action.
func TestNumbersInAnyNotation(t *testing.T) {
	c := answered(t, func(string, []byte) string {
		return `{"snapshot":{"resource":"x:/1","state":{"title":"a"},"fromSeq":7.0}}`
	})
	state, seq, err := c.SubscribeAt(context.Background(), "x:/1")
	if err != nil || string(state) != `{"title":"a"}` || seq != 7 {
		t.Errorf("SubscribeAt = %s, %d, %v; want the state and 7", state, seq, err)
	}
	c.cfg.Action = func(a Action) { seq = a.Seq }
	if err := (*messages)(c).Write([]byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"x:/1","serverSeq":8.0,"action":{"type":"session/titleChanged"}}}`)); err != nil || seq != 8 {
		t.Errorf("the action has the number %d, %v; want 8", seq, err)
	}
}

// TestStatusInAnyNotation has a host that writes a session's status as an integer and as floating point.
// The session must be listed and opened, with the same words for its status.
func TestStatusInAnyNotation(t *testing.T) {
	for _, status := range []string{"8", "8.0", "8e0"} {
		c := answered(t, func(method string, _ []byte) string {
			if method == "listSessions" {
				return fmt.Sprintf(`{"items":[{"resource":"x:/1","status":%s}]}`, status)
			}
			return fmt.Sprintf(`{"snapshot":{"resource":"x:/1","fromSeq":1,"state":{"status":%s,"defaultChat":"ahp-chat:/1"}}}`, status)
		})
		list, err := c.Sessions(context.Background())
		if err != nil || len(list) != 1 || Words(list[0].Status) != "working" {
			t.Errorf("with the status %s, the list is %v, %v; want a session that is working", status, list, err)
		}
		s, err := c.Session(context.Background(), "x:/1")
		if err != nil || Words(s.Status) != "working" {
			t.Errorf("with the status %s, the session is %v, %v; want one that is working", status, s, err)
		}
	}
}

// TestErrorInAnyNotation has a host that writes the code of an error as an integer and as floating point. The
// error must have the host's message, with the advice for its code.
func TestErrorInAnyNotation(t *testing.T) {
	for _, code := range []string{"-32009", "-32009.0", "-3.2009e4"} {
		c := &Client{out: make(chan []byte), closed: make(chan struct{}), ended: make(chan struct{}), calls: map[string]chan reply{}}
		host := (*messages)(c)
		go func() {
			request, _ := host.Read()
			env, _ := ahp.Peek(request)
			_ = host.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"not for you"}}`, env.ID, code))
		}()
		_, err := c.Call(context.Background(), "subscribe", nil)
		if err == nil || err.Error() != "subscribe: not for you: use a higher --level, or sign in with more rights" {
			t.Errorf("with the code %s, the error is %v; want the host's message with the advice for -32009", code, err)
		}
	}
}

// TestCancelledCallsKeepNoSubscription cancels Chat while the host has not answered. The subscription, which the host makes
// nevertheless, must end.
func TestCancelledCallsKeepNoSubscription(t *testing.T) {
	c := &Client{out: make(chan []byte), closed: make(chan struct{}), ended: make(chan struct{}), calls: map[string]chan reply{}}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := c.Chat(ctx, "ahp-chat:/1")
		failed <- err
		close(c.ended)
	}()
	<-c.out
	cancel()
	select {
	case b := <-c.out:
		if env, err := ahp.Peek(b); err != nil || string(env.Method) != "unsubscribe" || string(env.Channel) != "ahp-chat:/1" {
			t.Errorf("after the cancellation, the client sends %s; want unsubscribe", b)
		}
	case <-c.ended:
		t.Error("after the cancellation, the client sends nothing; want unsubscribe")
	}
	if err := <-failed; err == nil {
		t.Error("the cancelled call has no error")
	}
}
