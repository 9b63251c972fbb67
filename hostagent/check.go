package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"ahprelay/broker"
)

// Check tests in turn what Run needs: the token, the relay, NATS and the host.
// It calls ok for each success, and returns the first problem. It does not serve
// clients.
func (a *Agent) Check(ctx context.Context, ok func(result string)) error {
	ok(fmt.Sprintf("token: for host %s of tenant %s", a.host, a.tenant))
	for _, relay := range a.cfg.Relays {
		if _, err := a.credentialsFrom(ctx, relay); err != nil {
			return err
		}
		ok("relay: " + relay + " accepts the token and issues credentials")
	}
	for _, url := range a.natsURLs() {
		if err := a.checkNATS(ctx, url); err != nil {
			return err
		}
		ok("NATS: connected through " + url)
	}
	version, err := a.checkHost(ctx)
	if err != nil {
		return err
	}
	ok("host: " + a.cfg.Upstream.String() + " speaks " + version)
	return nil
}

// checkTime bounds each check of NATS or the host.
const checkTime = 10 * time.Second

func (a *Agent) checkNATS(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	conn, err := broker.DialAgent(ctx, a.natsConfig([]string{url}, "", nil, broker.Events{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.AwaitConnected(ctx)
}

// checkHost returns the host's software and AHP versions, or "AHP" if the host
// answers only pings.
func (a *Agent) checkHost(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := newMonitor(a.cfg.Upstream.String(), a.dialForMonitor, a.cfg.Resume, a.cfg.Log, func(condition) { stop() })
	err = m.watch(ctx, true, func() {})
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.speaks != "":
		return m.versionLocked(), nil
	case m.pongs:
		return "AHP", nil
	case m.spoke:
		return "", fmt.Errorf("upstream %s answers, but not to AHP requests: is this an AHP host's port?", a.cfg.Upstream)
	case err == nil || ctx.Err() != nil:
		return "", fmt.Errorf("upstream %s accepts connections, but does not answer: is this an AHP host's port, or does the host hang?", a.cfg.Upstream)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w; start the host, or give its address with --upstream", err)
	}
	return "", err
}
