package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"ahprelay/internal/atomicfile"
)

type openCmd struct {
	Host  string `arg:"" optional:"" help:"Show this host. Default: the page lists all hosts." placeholder:"HOST"`
	Print bool   `help:"Print the address instead of opening a browser. Keep the address secret: it contains a token of yours."`
}

const consoleToken = "console"

func (c *openCmd) Run(ctx context.Context, s *streams) error {
	// A different program may listen at that address now, and the page has a token.
	idle, err := s.home.Idle()
	if err != nil {
		return err
	}
	if idle {
		return errors.New("ahp-connect up does not run, which serves the console: start it with ahp-connect up, or ahp-connect install")
	}
	listen, err := s.home.Address()
	if err != nil {
		return err
	}
	if strings.HasPrefix(listen, "unix:") {
		return errors.New("ahp-connect up listens on a socket, which browsers cannot open: start it with --listen 127.0.0.1:8486")
	}
	token, err := s.home.Tokens().For(consoleToken, "")
	if err != nil {
		return err
	}
	at := url.Values{"token": {token.Token}}
	if c.Host != "" {
		if err := known(ctx, s.home, c.Host); err != nil {
			return err
		}
		at.Set("host", c.Host)
	}
	address := "http://" + listen + "/#" + at.Encode()
	if c.Print {
		_, err = fmt.Fprintln(s.out, address)
		return err
	}
	// All users of a machine can see a browser's command line, so the address with the
	// token is in a file.
	page := filepath.Join(s.home.Dir, "open.html")
	text := `<!doctype html><meta http-equiv="refresh" content="0;url=` + html.EscapeString(address) + `">`
	if err := atomicfile.Replace(page, []byte(text), 0o600); err != nil {
		return err
	}
	if err := browse(page); err != nil {
		return fmt.Errorf("no browser opens (%w): open the address that ahp-connect open --print shows", err)
	}
	_, err = fmt.Fprintf(s.out, "Opened in your browser. If nothing appears, open %s, or the address that ahp-connect open --print shows.\n", page)
	return err
}

// browse opens a file in the person's browser.
var browse = func(file string) error {
	switch runtime.GOOS {
	case "darwin":
		return exec.Command("open", file).Run()
	case "windows":
		return exec.Command("rundll32", "url.dll,FileProtocolHandler", file).Run()
	}
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("there is no display")
	}
	return exec.Command("xdg-open", file).Run()
}
