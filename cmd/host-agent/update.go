package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"ahprelay/cmd/internal/cli"
	"ahprelay/internal/clock"
	"ahprelay/internal/release"
)

type updateCmd struct {
	serviceFlags
	controlFlags
}

// connectTime is how long the new version may take to serve its host.
const connectTime = time.Minute

// Run replaces this program with the newest release, and restarts the service if there is
// one.
func (c *updateCmd) Run(ctx context.Context, s *streams) error {
	source, err := release.Released()
	if err != nil {
		return err
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	installed, err := release.Find(path)
	if err != nil {
		return err
	}
	newest, err := source.Newest(ctx, "host-agent")
	if err != nil {
		return err
	}
	if !newest.Newer(cli.BuildVersion()) {
		fmt.Fprintln(s.out, cli.BuildVersion(), "is the newest release.")
		return nil
	}
	program, err := source.Fetch(ctx, newest)
	if err != nil {
		return err
	}
	u := updater{
		replace: func() error {
			return installed.Replace(program, func(path string) error { return exec.CommandContext(ctx, path, "--version").Run() })
		},
		restore:  installed.Restore,
		instance: c.instance,
	}
	u.restart = c.service().Restart()
	if err := u.run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "Updated to %s; %s.previous is the earlier version.\n", newest.Version, path)
	if u.restart == nil {
		fmt.Fprintln(s.out, "There is no service. Start host-agent again to use the new version.")
	}
	return nil
}

func (c *updateCmd) instance(ctx context.Context) (string, error) {
	control, err := c.control()
	if err != nil {
		return "", err
	}
	list, err := control.Clients(ctx)
	return list.Agent, err
}

// An updater replaces a program and checks that the new version serves.
type updater struct {
	replace, restore func() error
	restart          func() error // of the service; nil: there is none
	instance         func(context.Context) (string, error)
}

var errNotServing = fmt.Errorf("the new version did not serve its host within %v", connectTime)

// run installs the new version, and restarts the service if there is one. If the earlier
// version has served, run waits until the new version serves. If the restart or the wait
// fails, run restores and restarts the earlier version.
func (u *updater) run(ctx context.Context) error {
	before, beforeErr := u.instance(ctx)
	if err := u.replace(); err != nil {
		return err
	}
	if u.restart == nil {
		return nil
	}
	err := u.restart()
	if err == nil && beforeErr == nil { // a host-agent that did not serve before need not serve now
		err = u.await(ctx, before)
	}
	if err == nil {
		return nil
	}
	if back := errors.Join(u.restore(), u.restart()); back != nil {
		return errors.Join(err, fmt.Errorf("and the earlier version did not return: %w", back))
	}
	return fmt.Errorf("%w; the earlier version runs again", err)
}

// await waits up to connectTime for an instance other than the earlier one.
func (u *updater) await(ctx context.Context, before string) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for {
		if now, err := u.instance(ctx); err == nil && now != before {
			return nil
		}
		if !clock.Sleep(ctx, time.Second) {
			return errNotServing
		}
	}
}
