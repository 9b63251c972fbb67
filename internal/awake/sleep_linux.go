package awake

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/godbus/dbus/v5"
)

const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = "org.freedesktop.login1.Manager"
)

// Watch calls sleeping before the machine sleeps, and again after it woke, until ctx
// ends or the D-Bus connection does. The machine waits for the first call, at most for
// logind's InhibitDelayMaxSec (5 s by default).
func Watch(ctx context.Context, sleeping func(asleep bool)) error {
	if err := watch(ctx, sleeping); ctx.Err() == nil {
		return err
	}
	return nil // a call that the end of ctx has interrupted is no error
}

func watch(ctx context.Context, sleeping func(asleep bool)) error {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("the system's D-Bus: %w", err)
	}
	defer conn.Close()
	if err := conn.AddMatchSignal(dbus.WithMatchInterface(loginManager), dbus.WithMatchMember("PrepareForSleep"), dbus.WithMatchObjectPath(loginPath)); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	release, err := delay(conn)
	if err != nil {
		return err
	}
	defer func() { release() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s, ok := <-signals:
			if !ok {
				return errors.New("the D-Bus connection ended")
			}
			var asleep bool
			if s.Name != loginManager+".PrepareForSleep" || dbus.Store(s.Body, &asleep) != nil {
				continue
			}
			sleeping(asleep)
			release()
			release = func() {}
			if asleep {
				continue
			}
			if release, err = delay(conn); err != nil {
				release = func() {}
				return err
			}
		}
	}
}

func delay(conn *dbus.Conn) (release func(), err error) {
	return inhibit(conn, "sleep", "tells clients that the machine sleeps", "delay")
}

// inhibit takes an inhibitor of systemd-logind.
func inhibit(conn *dbus.Conn, what, why, mode string) (release func(), err error) {
	var lock dbus.UnixFD
	if err := conn.Object(loginName, loginPath).Call(loginManager+".Inhibit", 0, what, "host-agent", why, mode).Store(&lock); err != nil {
		return nil, fmt.Errorf("logind's Inhibit: %w", err)
	}
	return func() { _ = syscall.Close(int(lock)) }, nil
}
