package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"ahprelay/cmd/internal/cli"
)

type forgetCmd struct {
	relayFlag
	Host string `arg:"" help:"Host to forget." placeholder:"HOST"`
}

// Run makes the running relay, and so its whole cluster, forget a host.
func (c *forgetCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	ask := map[string]string{"tenant": c.Tenant, "host": c.Host}
	if err := relay.operate(ctx, http.MethodPost, "/operator/forget", "relay forget", ask, &struct{}{}); err != nil {
		if refused, ok := errors.AsType[*refusedCommand](err); ok && refused.status == http.StatusNotFound {
			return fmt.Errorf("%w; relay hosts lists the known hosts", err)
		}
		return err
	}
	_, err = fmt.Fprintf(s.out, "forgot %s/%s; its tokens remain valid: relay revoke --data-dir %s --tenant %[1]s --host %[2]s ends them\n", c.Tenant, c.Host, cli.Quoted(c.DataDir))
	return err
}
