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
	"ahprelay/broker/wake"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/internal/clock"
)

// Timing of attempts to wake a host.
const (
	wakeCommandTime = 30 * time.Second
	wakeTime        = 90 * time.Second // limit for an attempt, including the command
	wakeEvery       = 30 * time.Second // shortest interval between attempts for a host
	wakeCheck       = 200 * time.Millisecond
	orderEvery      = 3 * time.Second
)

// waking wakes hosts, with the operator's commands or through other hosts. A host has one attempt
// at a time; later callers wait for its result.
type waking struct {
	commands map[string]string // the operator's commands, by tenant/host
	life     context.Context
	spawn    func(func()) bool

	mu   sync.Mutex
	runs map[string]*wakeRun // the latest attempts, by tenant/host
	last int64               // timestamp in the last order, in µs
}

// A wakeRun is an attempt to wake a host.
type wakeRun struct {
	began time.Time
	by    string
	done  chan struct{} // closed at the end, after err and took are set
	err   error
	took  time.Duration
}

// ByRelay is the value of Woken.By for the operator's command.
const ByRelay = "relay"

// A Woken is the result of a successful request.
type Woken struct {
	By    string  `json:"by"`    // ByRelay, or the host that woke this one
	After float64 `json:"after"` // seconds until the host was back
}

// A way is a method to wake a host.
type way struct {
	by    string
	start func(ctx context.Context) error // tries to start the machine
	again time.Duration                   // interval between starts while the host is not back
	done  string                          // describes the start, for error messages
}

// wayTo returns the way to wake a host on a person's behalf, or nil if there is none. It prefers
// the operator's command.
func (a *API) wayTo(who *auth.Client, tenant, host string) *way {
	if command := a.waking.commands[tenant+"/"+host]; command != "" {
		start := func(ctx context.Context) error { return runCommand(ctx, command, tenant, host) }
		return &way{ByRelay, start, wakeTime, "the relay's command to wake the host has run"}
	}
	if a.Order == nil {
		return nil
	}
	target, _ := a.Lookup(tenant, host)
	names, _ := wake.Names(target.Wake.By) // valid: the registry has checked the list
	for _, name := range names {
		by, _ := a.Lookup(tenant, name)
		if by.State != registry.Online || !target.Wake.Allows(name) || !by.Wake.Wakes(host) {
			continue
		}
		start := func(context.Context) error {
			return a.Order(wake.Order{
				Tenant: tenant, Host: name, Agent: by.AgentInstance, Target: host, Addresses: strings.Split(target.Wake.Addresses, ","),
				Subject: who.Subject, Token: who.ID, At: a.waking.next(),
			})
		}
		return &way{name, start, orderEvery, fmt.Sprintf("%q was asked to wake the host", name)} // the other host's wake-up packet may be lost
	}
	return nil
}

func runCommand(ctx context.Context, command, tenant, host string) error {
	ctx, cancel := context.WithTimeout(ctx, wakeCommandTime)
	defer cancel()
	c := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	c.Env = append(os.Environ(), "AHP_TENANT="+tenant, "AHP_HOST="+host)
	c.WaitDelay = time.Second
	if err := c.Run(); err != nil {
		return fmt.Errorf("the relay's command to wake the host failed: %w", err)
	}
	return nil
}

// run wakes a host, and waits until online returns true, at most wakeTime.
func (y *way) run(ctx context.Context, online func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, wakeTime)
	defer cancel()
	for next := time.Now(); ; {
		if !time.Now().Before(next) {
			if err := y.start(ctx); err != nil {
				return err
			}
			next = time.Now().Add(y.again)
		}
		if online() {
			return nil
		}
		if !clock.Sleep(ctx, wakeCheck) {
			return fmt.Errorf("%s, but it is not back after %v", y.done, wakeTime)
		}
	}
}

var errWokenLately = errors.New("this host was just woken; wait half a minute")

// next returns a timestamp for an order, later than the previous one.
func (w *waking) next() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = max(time.Now().UnixMicro(), w.last+1)
	return w.last
}

// run starts an attempt, or returns the one in progress. Within wakeEvery of an ended
// attempt's start, it returns errWokenLately. online reports whether the host is back.
func (w *waking) run(tenant, host string, way *way, online func() bool) (*wakeRun, error) {
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
	r := &wakeRun{began: time.Now(), by: way.by, done: make(chan struct{})}
	if !w.spawn(func() {
		defer close(r.done)
		r.err = way.run(w.life, online)
		r.took = time.Since(r.began)
	}) {
		return nil, errors.New("this relay stops; try again")
	}
	w.runs[key] = r
	return r, nil
}

// serveWake wakes a host for a person with the level operate. A copied token is not
// enough: the request must be signed with a device's key.
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
	way := a.wayTo(&who, who.Tenant, host)
	switch {
	case !who.MayReach(who.Tenant, host) || way == nil:
		authn.WriteError(w, http.StatusNotFound, errNoWay)
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
		authn.WriteJSON(w, http.StatusOK, Woken{By: ByRelay})
		return
	}
	run, err := a.waking.run(who.Tenant, host, way, online)
	if err != nil {
		w.Header().Set("Retry-After", "30")
		refuse(http.StatusTooManyRequests, err)
		return
	}
	a.Caller.Audit.Write(audit.Line{Event: "wake", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Address: a.Caller.Address(r), Detail: "by " + run.by})
	select {
	case <-run.done:
	case <-r.Context().Done():
		return
	}
	if run.err != nil {
		authn.WriteError(w, http.StatusBadGateway, run.err)
		return
	}
	authn.WriteJSON(w, http.StatusOK, Woken{By: run.by, After: run.took.Seconds()})
}

var errNoWay = errors.New("nothing can wake that host now: the relay has no command for it, and no host that may wake it is online")

// CanWake reports whether this relay can wake a host, by the operator's command or through
// another host.
func (a *API) CanWake(tenant, host string) bool { return a.wayTo(&auth.Client{}, tenant, host) != nil }

// mayWake reports whether a signed-in person may wake a host.
func mayWake(who auth.Client) bool {
	return who.Access.Includes(auth.AccessWrite) && len(who.Channels) == 0 && len(who.Methods) == 0
}

// WakeFor wakes a host for an item that a person has left for it. It does not wait for
// the result. The audit log has the attempt or its refusal.
func (a *API) WakeFor(who auth.Client, host string) {
	line := audit.Line{Event: "wake", Tenant: who.Tenant, Subject: who.Subject, Host: host, Token: who.ID, Detail: "for a waiting item"}
	if !mayWake(who) || !who.MayReach(who.Tenant, host) {
		line.Reason = "waking a host needs the level operate for the whole host"
	} else if way := a.wayTo(&who, who.Tenant, host); way == nil {
		line.Reason = errNoWay.Error()
	} else if _, err := a.waking.run(who.Tenant, host, way, a.online(who.Tenant, host)); err != nil {
		line.Reason = err.Error()
	}
	a.Caller.Audit.Write(line)
}

func (a *API) online(tenant, host string) func() bool {
	return func() bool {
		h, _ := a.Lookup(tenant, host)
		return h.State == registry.Online
	}
}

// CheckWake returns an error unless name is a valid TENANT/HOST.
func CheckWake(name string) error {
	tenant, host, ok := strings.Cut(name, "/")
	if !ok || tenant == "" || host == "" || strings.Contains(host, "/") {
		return fmt.Errorf("%q names no host; want TENANT/HOST, such as default/laptop", name)
	}
	return nil
}
