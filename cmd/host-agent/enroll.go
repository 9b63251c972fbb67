package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
)

type enrollCmd struct {
	Relay           []string `help:"The relay's base URL. Repeatable, for clusters." required:"" placeholder:"URL"`
	TokenFile       string   `help:"File with the enrolment token (relay token host), or - for standard input." required:"" placeholder:"FILE"`
	CredentialsFile string   `help:"File to create for the credential; host-agent run reads it with --credentials-file." required:"" type:"path" placeholder:"FILE"`
	plainFlag
}

func (c *enrollCmd) Run(ctx context.Context, s *streams) error {
	var in io.Reader
	if c.TokenFile == "-" {
		in = cli.Stdin(ctx)
	} else {
		file, err := os.Open(c.TokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		defer file.Close()
		in = file
	}
	b, err := io.ReadAll(io.LimitReader(in, auth.MaxTokenSize+2)) // with an end of line
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	token, err := onlyToken(b, c.TokenFile)
	if err != nil {
		return err
	}
	tenant, host, expires, err := hostagent.Enroll(ctx, hostagent.Enrolment{Relays: c.Relay, Token: token, File: c.CredentialsFile, Plain: c.RelayPlain})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Host %s of tenant %s is enrolled. The enrolment token is used up. %s is valid until %s; host-agent run renews it.\n",
		host, tenant, c.CredentialsFile, expires.Local().Format(time.RFC3339))
	return err
}
