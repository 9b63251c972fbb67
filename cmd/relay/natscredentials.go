package main

import (
	"fmt"
	"time"

	"ahprelay/auth"
)

type natsCredentialsCmd struct {
	dataFlag
	Host   string        `help:"Readable host. Default: all the tenant's hosts." placeholder:"HOST"`
	Tenant string        `help:"The hosts' tenant." default:"default"`
	TTL    time.Duration `help:"The credentials' lifetime, at most 24h." default:"1h" name:"ttl"`
}

func (c *natsCredentialsCmd) Run(s *streams) error {
	if c.TTL <= 0 || c.TTL > auth.MaxReaderTTL {
		return fmt.Errorf("--ttl is %v; want more than 0, and at most %v", c.TTL, auth.MaxReaderTTL)
	}
	return c.print(s, func(keys *auth.Keys) (string, error) {
		creds, err := keys.Authority().ChannelReader(c.Tenant, c.Host, c.TTL)
		return string(creds), err
	})
}
