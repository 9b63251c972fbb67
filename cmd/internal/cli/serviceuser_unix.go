//go:build unix

package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// refused reports whether a user lacks the access to a path for which the command test has the given operator. Only root can find
// that out. Of a user that this program does not know, such as one of a directory service, it returns false.
func refused(name, operator, path string) bool {
	if os.Geteuid() != 0 {
		return false
	}
	as, err := credentialOf(name)
	if err != nil {
		return false
	}
	cmd := exec.Command("test", operator, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	_, exited := errors.AsType[*exec.ExitError](cmd.Run())
	return exited
}

func credentialOf(name string) (*syscall.Credential, error) {
	who, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	groups, err := who.GroupIds()
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for _, id := range append([]string{who.Uid, who.Gid}, groups...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, err
		}
		ids = append(ids, uint32(n))
	}
	return &syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[2:]}, nil
}
