package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	"ahprelay/hostagent"
	"ahprelay/internal/sealed"
)

type devicesCmd struct {
	controlFlags
	Pair    bool        `help:"Show a code for one more device, valid for 10 minutes." xor:"do"`
	Subject string      `help:"With --pair, the person or service to whom the device will belong. Devices of one subject share clientIds." default:"owner" placeholder:"NAME"`
	Level   auth.Access `help:"With --pair, the device's level: look, talk, approve, operate or own. Devices with own admit and remove devices." enum:"look,talk,approve,operate,own,read,write,admin" default:"own"`
	Console string      `help:"With --pair, the console that the link in the QR code opens: a site that the relay does not serve. Default: the one of the running host-agent." placeholder:"URL" with:"pair"`
	Confirm string      `help:"Admit the waiting device with this fingerprint, after you have compared its words." xor:"do" placeholder:"ID"`
	Refuse  string      `help:"Refuse the waiting device with this fingerprint." xor:"do" placeholder:"ID"`
	Remove  string      `help:"Remove the device with this fingerprint, and those that it has admitted, or a grant by its serial. Their connections end at once." xor:"do" placeholder:"ID"`
	JSON    bool        `help:"Print the host-agent's answer as JSON."`
	NoQR    bool        `help:"Print no QR code." name:"no-qr"`
}

func (c *devicesCmd) Run(ctx context.Context, s *streams) error {
	control, err := c.control()
	if err != nil {
		return err
	}
	order := hostagent.DeviceOrder{Device: c.Confirm + c.Refuse + c.Remove}
	switch {
	case c.Pair:
		code, err := control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "pair", Subject: c.Subject, Level: c.Level, Console: c.Console})
		if err != nil {
			return err
		}
		if c.JSON {
			return json.NewEncoder(s.out).Encode(code)
		}
		showPairing(s.out, code, c.NoQR)
		return nil
	case c.Confirm != "":
		order.Do = "confirm"
	case c.Refuse != "":
		order.Do = "refuse"
	case c.Remove != "":
		order.Do = "remove"
	}
	if order.Do != "" {
		_, err := control.OrderDevices(ctx, order)
		return err
	}
	list, err := control.Devices(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(s.out).Encode(list)
	}
	fmt.Fprintf(s.err, "Host %s: %s\n", list.Host, list.Words)
	for _, w := range list.Waiting {
		fmt.Fprintln(s.err, waits(w))
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, d := range list.Devices {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Fingerprint, d.Words, d.Subject, d.Level.Level(), d.Seen.Local().Format(time.DateTime), printable(d.Name))
	}
	return table.Flush()
}

// waits describes a device that waits for confirmation. Its fingerprint may begin with a hyphen.
func waits(w hostagent.PairingRequest) string {
	return fmt.Sprintf("%s waits: %s (%s, %s). Compare these words with the device, then run host-agent devices --confirm=%s", named(w.Name), w.Words, w.Subject, w.Level.Level(), w.Fingerprint)
}

func named(name string) string {
	if name == "" {
		return "A device"
	}
	return "The device " + printable(name)
}

func showPairing(out io.Writer, code hostagent.PairingCode, noQR bool) {
	fmt.Fprintf(out, "To pair a device with this sealed host, run there\n\n  ahp-connect pair %s\n\nand type the code\n\n  %s\n\nThe device becomes %s's, with the level %s. The code is valid until %s, and for one device. The host's words are: %s\n",
		code.Host, code.Code, code.Subject, code.Level.Level(), code.Expires.Local().Format(time.TimeOnly), code.Words)
	if console, _, ok := strings.Cut(code.Link, "#"); ok && strings.Contains(console, "//") {
		fmt.Fprintf(out, "In a browser, open\n\n  %s\n", code.Link)
	}
	if !noQR {
		_ = cli.PrintQR(out, out, code.Link) // without it, the printed code is enough
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// sealing returns the settings of a sealed host. On a terminal, the host-agent shows the
// code of the first device, and asks for confirmations.
func (c *runCmd) sealing(s *streams) (*hostagent.Sealing, error) {
	switch {
	case !c.Sealed && c.Console != "":
		return nil, errors.New("--console is for sealed hosts: add --sealed")
	case !c.Sealed:
		return nil, nil
	case c.Console != "":
		for _, relay := range c.Relay {
			if err := sealed.CheckConsole(c.Console, relay); err != nil {
				return nil, err
			}
		}
	}
	sealing := &hostagent.Sealing{Console: c.Console}
	if !isTerminal(s.err) {
		return sealing, nil // a code in output that is kept in a log would be no secret
	}
	sealing.Show = func(code hostagent.PairingCode) { showPairing(s.err, code, false) }
	if !isTerminal(os.Stdin) {
		return sealing, nil
	}
	lines := make(chan string)
	go func() { // ends with the process
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	sealing.Confirm = func(ctx context.Context, device hostagent.PairingRequest) (bool, error) {
		for typed := true; typed; { // drops lines typed before the question
			select {
			case <-lines:
			case <-time.After(10 * time.Millisecond):
				typed = false
			}
		}
		fmt.Fprintf(s.err, "%s knows the code. Its words must be\n\n  %s\n\nDoes it show these words? Then it gets the level %s. [y/N] ", named(device.Name), device.Words, device.Level.Level())
		select {
		case line := <-lines:
			return strings.EqualFold(strings.TrimSpace(line), "y"), nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return sealing, nil
}
