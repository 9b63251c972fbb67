package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
)

// Times of waking.
const (
	wakeCommandTime = 30 * time.Second
	wakeTime        = 90 * time.Second // for the host to be online, the command included
	wakeEvery       = 30 * time.Second // for each host
	wakeCheck       = 200 * time.Millisecond
)

// waking wakes hosts with the operator's commands. One command at a time runs for a
// host, and later callers wait for its result.
type waking struct {
	commands map[string]string // by tenant/host
	life     context.Context
	spawn    func(func()) bool

	mu   sync.Mutex
	runs map[string]*wakeRun // the latest, by tenant/host
}

// A wakeRun is one attempt.
type wakeRun struct {
	began time.Time
	done  chan struct{} // closed at the end; then err and took are final
	err   error
	took  time.Duration
}

// A Woken is the result of a successful request.
type Woken struct {
	By    string  `json:"by"`    // who has woken the host: relay
	After float64 `json:"after"` // seconds until the host was back
}

// wakes reports whether the relay has a command for a host.
func (w *waking) wakes(tenant, host string) bool { return w.commands[tenant+"/"+host] != "" }

// errWokenLately reports a request too soon after the last.
var errWokenLately = errors.New("this host was just woken; wait half a minute")

// run joins or starts an attempt. Online reports whether the host is back.
func (w *waking) run(tenant, host string, online func() bool) (*wakeRun, error) {
	key := tenant + "/" + host
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.runs[key]; last != nil {
		select {
		case <-last.done:
			if time.Since(last.began) < wakeEvery {
				return nil, errWokenLately
			}
		default:
			return last, nil
		}
	}
	r := &wakeRun{began: time.Now(), done: make(chan struct{})}
	if !w.spawn(func() {
		defer close(r.done)
		r.err = wake(w.life, w.commands[key], tenant, host, online)
		r.took = time.Since(r.began)
	}) {
		return nil, errors.New("this relay stops; try again")
	}
	w.runs[key] = r
	return r, nil
}

// wake runs a command and waits for the host.
func wake(ctx context.Context, command, tenant, host string, online func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, wakeTime)
	defer cancel()
	running, stop := context.WithTimeout(ctx, wakeCommandTime)
	defer stop()
	c := exec.CommandContext(running, "/bin/sh", "-c", command)
	c.Env = append(os.Environ(), "AHP_TENANT="+tenant, "AHP_HOST="+host)
	c.WaitDelay = time.Second
	if err := c.Run(); err != nil {
		return fmt.Errorf("the relay's command to wake the host failed: %w", err)
	}
	for !online() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the relay's command to wake the host has run, but the host is not back after %v", wakeTime)
		case <-time.After(wakeCheck):
		}
	}
	return nil
}

// serveWake wakes a host for a person with the level operate. The request must be signed
// by a device's key, so a copied token wakes nothing.
func (a *API) serveWake(w http.ResponseWriter, r *http.Request) {
	who, ok := a.Caller.Client(w, r)
	if !ok {
		return
	}
	host := r.PathValue("host")
	refuse := func(status int, err error) {
		a.Caller.Audit.Write(audit.Line{Event: "wake", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Address: a.Caller.Address(r), Reason: err.Error()})
		authn.WriteError(w, status, err)
	}
	switch {
	case !who.MayReach(who.Tenant, host) || !a.waking.wakes(who.Tenant, host):
		authn.WriteError(w, http.StatusNotFound, errors.New("this relay has no command to wake that host"))
		return
	case !mayWake(who):
		refuse(http.StatusForbidden, errors.New("waking a host needs the level operate for the whole host"))
		return
	case who.Key == "":
		refuse(http.StatusForbidden, errors.New("waking a host needs a signed-in device; a token alone is not enough"))
		return
	}
	online := a.online(who.Tenant, host)
	if online() {
		authn.WriteJSON(w, http.StatusOK, Woken{By: "relay"})
		return
	}
	run, err := a.waking.run(who.Tenant, host, online)
	if err != nil {
		w.Header().Set("Retry-After", "30")
		refuse(http.StatusTooManyRequests, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{Event: "wake", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Address: a.Caller.Address(r)})
	select {
	case <-run.done:
	case <-r.Context().Done():
		return
	}
	if run.err != nil {
		authn.WriteError(w, http.StatusBadGateway, run.err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, Woken{By: "relay", After: run.took.Seconds()})
}

// CanWake reports whether this relay can wake a host.
func (a *API) CanWake(tenant, host string) bool { return a.waking.wakes(tenant, host) }

// mayWake reports whether a signed-in person may wake a host.
func mayWake(who auth.Client) bool {
	return who.Access.Includes(auth.AccessWrite) && len(who.Channels) == 0 && len(who.Methods) == 0
}

// WakeFor wakes a host at the time that a person has set earlier. It does not wait.
func (a *API) WakeFor(who auth.Client, host string) {
	line := audit.Line{Event: "wake", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Detail: "for a waiting item"}
	if !mayWake(who) || !who.MayReach(who.Tenant, host) {
		line.Reason = "waking a host needs the level operate for the whole host"
	} else if _, err := a.waking.run(who.Tenant, host, a.online(who.Tenant, host)); err != nil {
		line.Reason = err.Error()
	}
	a.Caller.Audit.Write(line)
}

// online returns a function that reports whether a host is online.
func (a *API) online(tenant, host string) func() bool {
	return func() bool {
		h, _ := a.Lookup(tenant, host)
		return h.State == registry.Online
	}
}

// CheckWake rejects an invalid name of a command's host.
func CheckWake(name string) error {
	tenant, host, ok := strings.Cut(name, "/")
	if !ok || tenant == "" || host == "" || strings.Contains(host, "/") {
		return fmt.Errorf("%q names no host; want TENANT/HOST, such as default/laptop", name)
	}
	return nil
}
