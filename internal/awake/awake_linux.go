package awake

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/godbus/dbus/v5"
)

// Hold takes an idle inhibitor of systemd-logind (org.freedesktop.login1.Manager,
// Inhibit). It lasts until release, or the end of the process.
func Hold(reason string) (release func(), err error) {
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return nil, fmt.Errorf("the system's D-Bus: %w", err)
	}
	defer conn.Close() // closing it does not release the inhibitor, which is a file descriptor
	return inhibit(conn, "idle", reason, "block")
}

// supplies is the directory of the machine's power supplies.
var supplies = "/sys/class/power_supply"

// Mains reports whether the machine runs on mains power: a mains supply is online, or
// there is no battery.
func Mains() bool {
	battery := false
	dirs, _ := filepath.Glob(filepath.Join(supplies, "*"))
	for _, dir := range dirs {
		switch kind := text(dir, "type"); {
		case (kind == "Mains" || kind == "USB") && text(dir, "online") == "1":
			return true
		case kind == "Battery" && text(dir, "scope") != "Device": // not a mouse's battery
			battery = true
		}
	}
	return !battery
}

func text(dir, name string) string {
	data, _ := os.ReadFile(filepath.Join(dir, name)) // missing in some directories
	return strings.TrimSpace(string(data))
}
