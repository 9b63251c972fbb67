package test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/hostagent"
	"ahprelay/test/pushsite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// An answered is the relay's response to a posted answer.
type answered struct {
	Status            int
	Result, Error, By string
}

// post sends an answer to its address from a notification. The address is the only
// credential: the request has no token.
func post(t *testing.T, s *stack.Stack, path, body string) (a answered) {
	t.Helper()
	response, err := http.Post(s.Relay.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return a
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err != nil {
		t.Errorf("reading the relay's answer %s: %v; want JSON", data, err)
	}
	a.Status = response.StatusCode
	return a
}

// options returns the addresses of a notification's answers, by label.
func options(p pushsite.Pushed) map[string]string {
	list := map[string]string{}
	for _, a := range p.Answers {
		list[a.Label] = a.URL
	}
	return list
}

// confirmations counts the chat/toolCallConfirmed actions that the host has sent to a
// client.
func confirmations(c *refclient.Client) (n int) {
	for _, frame := range c.Frames() {
		if bytes.Contains(frame, []byte(`"chat/toolCallConfirmed"`)) {
			n++
		}
	}
	return n
}

// Two devices of a person get a notification. Its answers are posted many times at
// once, and once more after the end. The relay accepts the first, and refuses all
// others with the name of the person.
func TestHostHearsOneAnswer(t *testing.T) {
	t.Parallel()
	s := startNotifying(t, agenthost.Protocol10, onLoopback())
	c := join(t, throughRelay(t, s), "user", nil)
	phone, tablet, viewer := pushsite.New(t), pushsite.New(t), pushsite.New(t)
	approver := func(c *auth.Client) { c.Subject, c.Access = "bob", auth.AccessApprove }
	subscribe(t, s, phone, true, approver)
	way := subscribe(t, s, tablet, true, approver)
	subscribe(t, s, viewer, true, func(c *auth.Client) { c.Subject, c.Access = "eve", auth.AccessTalk })

	chat := ask(t, c, "demo:/one", "t1")
	first, second := phone.Next(), tablet.Next()
	yes, no := options(first)["Allow Once"], options(second)["Skip"]
	if len(first.Answers) != 2 || first.Answers[0].Label != "Allow Once" || yes == "" || no == "" {
		t.Fatalf("the push is %+v; want to allow once, and then to skip", first)
	}
	if p := viewer.Next(); len(p.Answers) != 0 {
		t.Errorf("a person who may not approve got the answers %+v; want none", p.Answers)
	}

	var mu sync.Mutex
	results := map[string]int{}
	var all sync.WaitGroup
	const answerers, times = 30, 5
	for i := range answerers {
		all.Go(func() {
			for range times {
				a := post(t, s, []string{yes, no}[i%2], "")
				mu.Lock()
				results[a.Result]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if results["given"] != 1 || results["given"]+results["answered"] != answerers*times {
		t.Errorf("the results of %d answers at once are %v; want exactly one given", answerers*times, results)
	}
	awaitFrame(t, c, `"turnId":"t1"`, "chat/turnComplete")
	if n := confirmations(c); n != 1 {
		t.Errorf("the host received %d answers; want one", n)
	}
	if late := post(t, s, yes, ""); late.Status != http.StatusConflict || late.By != "bob" || late.Error != "already answered by bob" {
		t.Errorf("a late answer gets %+v; want already answered, by bob", late)
	}

	// A token sent with the address must belong to the same person.
	if a, status := api[answered](t, s, "POST", yes, nil, func(c *auth.Client) { c.Subject = "eve" }); status != http.StatusForbidden || a.Error != "this answer link belongs to another person" {
		t.Errorf("bob's answer with eve's token: HTTP %d, %+v; want 403", status, a)
	}
	if a, status := api[answered](t, s, "POST", yes, nil, approver); status != http.StatusConflict || a.By != "bob" {
		t.Errorf("bob's answer with bob's token: HTTP %d, %+v; want 409", status, a)
	}

	// After an answer on the page, the notification is withdrawn.
	begin(t, c, chat, "t2", "permission")
	p := first
	for p.ID == first.ID || p.Kind != notice.Approval {
		p = tablet.Next()
	}
	yes = options(p)["Allow Once"]
	allow(t, c, chat, "t2")
	awaitFrame(t, c, `"turnId":"t2"`, "chat/turnComplete")
	for end := p; !end.Withdrawn || end.ID != p.ID; { // the host-agent learns this on its own connection to the host
		end = tablet.Next()
	}
	if late := post(t, s, yes, ""); late.Status != http.StatusGone {
		t.Errorf("an answer to a question that was answered at the host: %+v; want HTTP 410", late)
	}
	if n := confirmations(c); n != 2 {
		t.Errorf("the host received %d answers; want two", n)
	}

	// A removed target's answer address is refused, and so are forged addresses.
	_, _ = api[struct{}](t, s, "DELETE", "/api/notify/ways/"+way.ID, nil, approver)
	forged := strings.Replace(yes, "/eyJ0", "/eyJ1", 1)
	for _, path := range []string{yes, forged, yes[:len(yes)-4], "/api/answers/x", "/api/answers/" + strings.Repeat("A", 9000)} {
		if a := post(t, s, path, ""); a.Status != http.StatusNotFound {
			t.Errorf("POST %.40s…: %+v; want HTTP 404", path, a)
		}
	}
}

// Clients with different tokens answer one question. The relay accepts a token with the
// level approve for the question's session, host and tenant, and refuses every other
// token.
func TestOnlyApproversAnswer(t *testing.T) {
	t.Parallel()
	s := startNotifying(t, agenthost.Protocol09, onLoopback())
	c := join(t, throughRelay(t, s), "user", nil)
	all := follow(t, s, "", nil)
	ask(t, c, "demo:/one", "t1")
	e := all.want("event", notice.Approval)
	for _, test := range []struct {
		name   string
		change func(*auth.Client)
		option string
		want   int
	}{
		{"look", func(c *auth.Client) { c.Access = auth.AccessRead }, "allow-once", http.StatusForbidden},
		{"talk", func(c *auth.Client) { c.Access = auth.AccessTalk }, "allow-once", http.StatusForbidden},
		{"another session", func(c *auth.Client) { c.Channels = []string{"demo:/two"} }, "allow-once", http.StatusGone},
		{"another host", func(c *auth.Client) { c.Hosts = []string{"other"} }, "allow-once", http.StatusGone},
		{"another tenant", func(c *auth.Client) { c.Tenant = "other" }, "allow-once", http.StatusGone},
		{"methods", func(c *auth.Client) { c.Methods = []string{"listSessions"} }, "allow-once", http.StatusForbidden},
		{"no option", nil, "", http.StatusBadRequest},
		{"another question", nil, "changed", http.StatusConflict},
		{"another option", nil, "other", http.StatusBadRequest},
		{"this session", func(c *auth.Client) { c.Channels, c.Access = []string{"demo:/one"}, auth.AccessApprove }, "skip", http.StatusOK},
		{"again", nil, "skip", http.StatusConflict},
	} {
		body := map[string]string{"host": stack.Host, "option": test.option, "digest": e.Data.Digest}
		if test.option == "changed" {
			body["option"], body["digest"] = "allow-once", "as of before"
		}
		got, status := api[answered](t, s, "POST", "/api/answers/"+e.Data.ID, body, test.change)
		gone := test.want == http.StatusConflict && status == http.StatusGone // the host has already reported the end of the question
		if status != test.want && !gone {
			t.Errorf("%s: HTTP %d, %+v; want %d", test.name, status, got, test.want)
		}
	}
	awaitFrame(t, c, "Denied.")
	if n := confirmations(c); n != 1 {
		t.Errorf("the host received %d answers; want one", n)
	}
}

// TestAnswerRealHost runs a tool that needs permission at the host in AHP_UPSTREAM,
// with the host's scripted agent. A person permits the tool at the answer's address in
// the notification. The tool then runs.
func TestAnswerRealHost(t *testing.T) {
	upstream := os.Getenv("AHP_UPSTREAM")
	if upstream == "" {
		t.Skip("AHP_UPSTREAM names no host")
	}
	s := startStack(t, stack.Config{Upstream: upstream, Relay: onLoopback(), Agent: hostagent.Config{Notify: hostagent.NotifyAll}})
	c := join(t, throughRelay(t, s), "user-"+rand.Text(), nil)
	service := pushsite.New(t)
	subscribe(t, s, service, true, nil)
	began := time.Now()
	turn := strings.ToLower(rand.Text())
	ask(t, c, "mock:/"+strings.ToLower(rand.Text()), turn)
	p := service.Next()
	t.Logf("pushed after %v: %+v", time.Since(began).Round(time.Millisecond), p.Message)
	yes := options(p)["Allow Once"]
	if p.Kind != notice.Approval || yes == "" {
		t.Fatalf("the push is %+v; want an approval with the host's options", p)
	}
	if a := post(t, s, yes, ""); a.Result != "given" {
		t.Fatalf("the answer's outcome is %+v; want given", a)
	}
	awaitFrame(t, c, turn, "chat/toolCallComplete", `"success":true`)
	awaitFrame(t, c, "Allowed.")
	if again := post(t, s, yes, ""); again.Status != http.StatusConflict {
		t.Errorf("the same answer again: %+v; want HTTP 409", again)
	}
	if n := confirmations(c); n != 1 {
		t.Errorf("the host received %d answers; want one", n)
	}
	for p := service.Next(); !p.Withdrawn; p = service.Next() {
		t.Logf("pushed %s", p.Kind)
	}
}
