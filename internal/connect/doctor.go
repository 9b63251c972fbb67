package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// maxSkew is how much the clocks of this machine and of a relay may differ without
// harm.
const maxSkew = 2 * time.Minute

// remedyAway is the advice if a host is unreachable.
const remedyAway = "; run host-agent check on its machine"

// Check tests a relay step by step, and calls say with a sentence for each result. It
// stops if the relay does not answer.
func (r *Relay) Check(ctx context.Context, say func(ok bool, text string)) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/healthz", nil)
	if err != nil {
		say(false, err.Error())
		return
	}
	began := time.Now()
	response, err := r.http.Do(request)
	if err != nil {
		say(false, r.explain(unwrapURL(r.URL, err)).Error())
		return
	}
	_ = response.Body.Close()
	say(true, fmt.Sprintf("%s answers in %v", r.Name, time.Since(began).Round(time.Millisecond)))
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		if skew := time.Since(at).Round(time.Second); skew.Abs() > maxSkew {
			say(false, fmt.Sprintf("this machine's clock differs by %v from %s: set it, or sign-ins and certificates may be refused", skew, r.Name))
		}
	}
	hosts, err := r.Hosts(ctx)
	if err != nil {
		say(false, err.Error())
		return
	}
	if len(hosts) == 0 {
		say(false, fmt.Sprintf("%s has no host that you may open: ask its owner, or run \"host-agent up\" on a machine with agents", r.Name))
	}
	for _, h := range hosts {
		text := fmt.Sprintf("%s at %s is %s", h.Name, r.Name, h.State)
		if h.Reason != "" {
			text += ": " + h.Reason
		}
		if h.State != "online" {
			text += remedyAway
		}
		say(h.State == "online", text)
	}
}

// CheckAddress tests whether `ahp-connect up` runs, or may listen at an address, and calls say with the result.
func (h *Home) CheckAddress(address string, say func(ok bool, text string)) {
	release, locked, err := h.lock()
	if errors.Is(err, ErrRuns) {
		say(true, "ahp-connect up runs")
		return
	}
	if err != nil {
		say(false, fmt.Sprintf("%s cannot be used: %v", h.Dir, err))
		return
	}
	defer release()
	l, err := Listen(address)
	switch taken := (*PortTaken)(nil); {
	case errors.As(err, &taken) && !locked:
		say(true, address+" is in use, as by a running ahp-connect up")
	case err != nil:
		say(false, err.Error())
	default:
		_ = l.Close() // nobody has connected
		say(true, "ahp-connect up does not run, and "+address+" is free: start it with ahp-connect up, or ahp-connect install")
	}
}
