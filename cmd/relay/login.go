package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/cmd/internal/cli"
)

// deviceFlag says where the device is that relay login makes.
type deviceFlag struct {
	Device string `help:"File of this device, for who signs in at several relays, or as several people. Default: one in your state directory." type:"path" placeholder:"FILE"`
}

// path is where the device is.
func (f deviceFlag) path() (string, error) {
	if f.Device != "" {
		return f.Device, nil
	}
	state, err := cli.StateHome("ahp-relay")
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "device.json"), nil
}

func (f deviceFlag) open() (*device.Device, error) {
	path, err := f.path()
	if err != nil {
		return nil, err
	}
	return device.Open(path)
}

type loginCmd struct {
	URL  string `arg:"" help:"Base URL of the relay, or the link of an invitation to it, which needs nobody to approve." placeholder:"URL"`
	Name string `help:"Name of this device, as it is listed. Default: relay login, and the machine's name." placeholder:"NAME"`
	deviceFlag
	RelayPlain bool `help:"Allow http:// to other machines. Only where the network is private."`
	NoQR       bool `help:"Print no QR code." name:"no-qr"`
}

// Run has somebody who is signed in let this machine in, as a device of theirs.
func (c *loginCmd) Run(ctx context.Context, s *streams) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	machine, _ := os.Hostname() // what is not known is not shown
	login := device.Login{Relay: c.URL, Name: c.Name, Machine: machine, Plain: c.RelayPlain, Show: func(code device.Code) {
		cli.ShowCode(s.err, code, c.NoQR)
	}}
	if login.Name == "" {
		login.Name = strings.TrimSpace("relay login " + machine)
	}
	if who, err := user.Current(); err == nil {
		login.User = who.Username
	}
	d, err := login.Run(ctx)
	if err != nil {
		return err
	}
	if err := d.Save(path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "Signed in as %s. relay access prints tokens for clients; relay logout ends it.\n", d.Subject)
	return err
}

type accessCmd struct {
	deviceFlag
	Host    []string      `help:"Hosts, as patterns. Default: all that you may reach." placeholder:"HOST"`
	Channel []string      `help:"Channels, as patterns. Default: all that you may reach." placeholder:"URI"`
	Level   auth.Access   `help:"What the token allows, at most what you may: look, talk, approve, operate or own. Default: what you may, but to own." enum:"look,talk,approve,operate,own,read,write,admin," default:""`
	TTL     time.Duration `help:"How long a token is good, at most 720h; with --keep it is renewed after half of that." default:"1h" name:"ttl"`
	Keep    string        `help:"Keep a good token in this file until stopped, in place of printing one: for clients that read it each time." type:"path" placeholder:"FILE"`
}

// Run prints a token for a client that cannot prove a key, or keeps one in a file.
func (c *accessCmd) Run(ctx context.Context, s *streams) error {
	d, err := c.open()
	if err != nil {
		return err
	}
	token, err := c.token(ctx, d)
	if err != nil {
		return err
	}
	if c.Keep == "" {
		_, err := fmt.Fprintln(s.out, token)
		return err
	}
	for {
		if err := auth.ReplaceFile(c.Keep, []byte(token+"\n"), 0o600); err != nil {
			return err
		}
		if token, err = c.renewed(ctx, s, d); err != nil {
			return err
		}
		if token == "" {
			return nil
		}
	}
}

// retryToken is how long it is waited when the relay does not answer.
const retryToken = 10 * time.Second

// renewed returns a new token in time, and "" when ctx ends. That the relay is away is no reason to
// end.
func (c *accessCmd) renewed(ctx context.Context, s *streams, d *device.Device) (string, error) {
	wait := c.TTL / 2
	for {
		select {
		case <-ctx.Done():
			return "", nil
		case <-time.After(wait):
		}
		token, err := c.token(ctx, d)
		var refused *device.Refused
		switch {
		case err == nil:
			s.log.Info("token renewed", "file", c.Keep)
			return token, nil
		case ctx.Err() != nil:
			return "", nil
		case errors.As(err, &refused) && refused.Status < http.StatusInternalServerError && refused.Status != http.StatusTooManyRequests:
			return "", err
		}
		s.log.Warn("token could not be renewed; trying again", "error", err)
		wait = retryToken
	}
}

// token asks for one.
func (c *accessCmd) token(ctx context.Context, d *device.Device) (string, error) {
	var made struct{ Token string }
	err := d.Call(ctx, http.MethodPost, "/api/tokens", map[string]any{
		"level": c.Level, "hosts": c.Host, "channels": c.Channel, "seconds": int(c.TTL.Seconds()),
	}, &made)
	return made.Token, err
}

type logoutCmd struct{ deviceFlag }

// Run ends the device, at the relay and here.
func (c *logoutCmd) Run(ctx context.Context, s *streams) error {
	d, err := c.open()
	if err != nil {
		return err
	}
	err = d.Call(ctx, http.MethodDelete, "/api/devices/"+url.PathEscape(d.ID), nil, nil)
	var refused *device.Refused
	if err != nil && (!errors.As(err, &refused) || refused.Name != "invalid_grant") { // else it was removed before
		return fmt.Errorf("%w; the device stays: remove it on /device, and then its file", err)
	}
	path, err := c.path()
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "Signed out. The tokens of this device are revoked.\n")
	return err
}
