package gateway

import (
	"testing"
	"time"

	"ahprelay/broker/registry"
)

// lateDirectory has a host. It calls looked, once, while the result of the first lookup is on its way.
type lateDirectory struct {
	directory
	host   registry.Host
	looked func()
}

func (d *lateDirectory) Lookup(string, string) (registry.Host, bool) {
	host := d.host
	if looked := d.looked; looked != nil {
		d.looked = nil
		looked()
	}
	return host, true
}

// TestLateLookupEndsNoNewerLink replaces a host-agent while a lookup of its host is on its way, as
// happens on a busy machine. The late result must not end the link to the new host-agent.
func TestLateLookupEndsNoNewerLink(t *testing.T) {
	t.Parallel()
	key := hostKey{"acme", "laptop"}
	known := &lateDirectory{host: registry.Host{State: registry.Online, AgentInstance: "first"}}
	h := newHosts(t.Context(), &Config{}, known, func(func()) bool { return true })
	h.entries[key] = &hostEntry{guests: 1}
	var ended error
	found := make(chan struct{})
	known.looked = func() {
		known.host.AgentInstance = "second"
		go func() {
			defer close(found)
			h.find(key) // as after the registry's notice
		}()
		select {
		case <-found:
			h.entries[key].link.cancel = func(why error) { ended = why }
		case <-time.After(100 * time.Millisecond): // the second waits for the first
		}
	}
	h.find(key)
	<-found
	if ended != nil {
		t.Errorf("the link to the new host-agent ends: %v; want it to stay", ended)
	}
}
