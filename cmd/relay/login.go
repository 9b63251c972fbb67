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

// deviceFlag names relay login's device file.
type deviceFlag struct {
	Device string `help:"This device's file, if you sign in at several relays or as several people. Default: one in your state directory." type:"path" placeholder:"FILE"`
}

// path returns the device file's path.
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
	URL  string `arg:"" help:"The relay's base URL, or an invitation link, which needs no approval." placeholder:"URL"`
	Name string `help:"This device's name in lists. Default: relay login, and the machine's name." placeholder:"NAME"`
	deviceFlag
	RelayPlain bool `help:"Allow http:// to other machines, in private networks only."`
	NoQR       bool `help:"Print no QR code." name:"no-qr"`
}

// Run asks a signed-in person to approve this machine as a device.
func (c *loginCmd) Run(ctx context.Context, s *streams) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	machine, _ := os.Hostname() // an unknown name is not shown
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
	_, err = fmt.Fprintf(s.err, "Signed in as %s. relay access prints tokens for clients; relay logout signs out.\n", d.Subject)
	return err
}

type accessCmd struct {
	deviceFlag
	Host    []string      `help:"Hosts, as patterns. Default: all hosts that you may reach." placeholder:"HOST"`
	Channel []string      `help:"Channels, as patterns. Default: all channels that you may reach." placeholder:"URI"`
	Level   auth.Access   `help:"The token's level, at most your own: look, talk, approve, operate or own. Default: your own, at most operate." enum:"look,talk,approve,operate,own,read,write,admin," default:""`
	TTL     time.Duration `help:"The token's lifetime, at most 720h; --keep renews it after half of this time." default:"1h" name:"ttl"`
	Keep    string        `help:"Keep a valid token in this file until stopped, instead of printing one: for clients that read the file each time." type:"path" placeholder:"FILE"`
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

// retryToken is the pause before another attempt when the relay does not answer.
const retryToken = 10 * time.Second

// renewed returns a new token before the old one expires, and "" when ctx ends. It
// retries while the relay is away.
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
		s.log.Warn("token not renewed; trying again", "error", err)
		wait = retryToken
	}
}

// token requests a token.
func (c *accessCmd) token(ctx context.Context, d *device.Device) (string, error) {
	var made struct{ Token string }
	err := d.Call(ctx, http.MethodPost, "/api/tokens", map[string]any{
		"level": c.Level, "hosts": c.Host, "channels": c.Channel, "seconds": int(c.TTL.Seconds()),
	}, &made)
	return made.Token, err
}

type logoutCmd struct{ deviceFlag }

// Run signs the device out, at the relay and here.
func (c *logoutCmd) Run(ctx context.Context, s *streams) error {
	d, err := c.open()
	if err != nil {
		return err
	}
	err = d.Call(ctx, http.MethodDelete, "/api/devices/"+url.PathEscape(d.ID), nil, nil)
	var refused *device.Refused
	if err != nil && (!errors.As(err, &refused) || refused.Name != "invalid_grant") { // otherwise it was removed before
		return fmt.Errorf("%w; the device remains: remove it on /device, then delete its file", err)
	}
	path, err := c.path()
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "Signed out. This device's tokens are revoked.\n")
	return err
}
