package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

// shareFlags select a host on this machine, and a relay.
type shareFlags struct {
	Relay           []string `help:"The relay's base URL. Default: the relay that issued the credential." placeholder:"URL"`
	TokenFile       string   `help:"File with the enrolment token, as for run." xor:"token" type:"path" placeholder:"FILE"`
	CredentialsFile string   `help:"Credential file, as for run. Default: the file written by host-agent up, if there is only one." xor:"token" type:"path" placeholder:"FILE"`
	plainFlag
}

// sharing returns access to the relay's links.
func (f *shareFlags) sharing() (*hostagent.Sharing, error) {
	s := &hostagent.Sharing{Relays: f.Relay, Plain: f.RelayPlain}
	if f.TokenFile != "" {
		from := hostFlags{TokenFile: f.TokenFile}
		s.Token = from.token
	} else {
		file, err := f.credentials()
		if err != nil {
			return nil, err
		}
		if s.Credentials, err = hostagent.OpenCredentialFile(file); err != nil {
			return nil, err
		}
		s.Token = s.Credentials.Token
		if relay := s.Credentials.Relay(); len(s.Relays) == 0 && relay != "" {
			s.Relays = []string{relay}
		}
	}
	if len(s.Relays) == 0 {
		return nil, errors.New("no relay known: give --relay")
	}
	return s, nil
}

// credentials returns the credential file's path.
func (f *shareFlags) credentials() (string, error) {
	if f.CredentialsFile != "" {
		return f.CredentialsFile, nil
	}
	dir, err := stateHome()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.credential"))
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", fmt.Errorf("no credential in %s: give --credentials-file or --token-file, or run host-agent up first: %w", dir, fs.ErrNotExist)
	case len(found) > 1:
		return "", fmt.Errorf("several credentials in %s: choose one with --credentials-file", dir)
	}
	return found[0], nil
}

type shareCmd struct {
	Session string        `arg:"" help:"Session URI, such as ahp-session:/…, or the console's address while the session is open." placeholder:"SESSION"`
	Level   auth.Access   `help:"Level for the link's holders: look, talk, approve or operate; never above --allow of the running host-agent." enum:"look,talk,approve,operate,read,write" default:"look"`
	TTL     time.Duration `help:"The link's lifetime, at most 168h." default:"1h" name:"ttl"`
	People  int           `help:"Concurrent connections allowed for the link." default:"64" placeholder:"N"`
	Files   bool          `help:"Include files in the session's working directories."`
	NoQR    bool          `help:"Print no QR code." name:"no-qr"`
	shareFlags
}

// Run prints a link, and, on a terminal, its QR code.
func (c *shareCmd) Run(ctx context.Context, s *streams) error {
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	session := c.Session
	if _, fragment, ok := strings.Cut(session, "#"); ok {
		if params, err := url.ParseQuery(fragment); err == nil && params.Get("session") != "" {
			session = params.Get("session")
		}
	}
	link, err := sharing.Share(ctx, hostagent.ShareAsk{Session: session, Level: c.Level, TTL: c.TTL, People: c.People, Files: c.Files})
	if err != nil {
		return err
	}
	if err := tried(ctx, sharing, link, session); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.out, link.Link); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "Valid until %s. List its viewers: host-agent shares. Revoke it: host-agent unshare %s\n", link.Expires.Local().Format(time.DateTime), link.ID)
	if c.NoQR {
		return nil
	}
	return cli.PrintQR(os.Stdout, s.err, link.Link)
}

// tried opens a new link's session like the link's first viewer, and revokes the link if
// the host does not know the session.
func tried(ctx context.Context, sharing *hostagent.Sharing, link hostagent.Link, session string) error {
	relay, token, host, err := sharing.Open(ctx, link)
	if err == nil {
		err = cli.CheckSession(ctx, http.DefaultClient, relay, token, host, session)
	}
	if err == nil {
		return nil
	}
	_, kept := sharing.TakeBack(ctx, link.ID)
	return errors.Join(err, kept)
}

type sharesCmd struct {
	shareFlags
}

// Run lists the valid links.
func (c *sharesCmd) Run(ctx context.Context, s *streams) error {
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	list, err := sharing.List(ctx)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(s.err, "No links to this host.")
		return err
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSESSION\tLEVEL\tBY\tUNTIL\tTHERE NOW")
	for _, one := range list {
		there := make([]string, 0, len(one.Watching))
		for _, viewer := range one.Watching {
			there = append(there, viewer.Address)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d of %d  %s\n", one.ID, printable(one.Session), one.Level, printable(one.By),
			one.Expires.Local().Format(time.DateTime), len(one.Watching), one.People, printable(strings.Join(there, " ")))
	}
	return table.Flush()
}

type unshareCmd struct {
	ID  string `arg:"" optional:"" help:"Link ID, as printed by host-agent shares." placeholder:"ID"`
	All bool   `help:"All links to this host, including those made by other people."`
	shareFlags
}

// Run revokes links.
func (c *unshareCmd) Run(ctx context.Context, s *streams) error {
	if (c.ID == "") == !c.All {
		return errors.New("give a link ID, or --all")
	}
	sharing, err := c.sharing()
	if err != nil {
		return err
	}
	ended, err := sharing.TakeBack(ctx, c.ID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Revoked: %d. Their connections are closed.\n", ended)
	return err
}
