package agenthost

import (
	"os"
	"path/filepath"

	"ahprelay/ahp"
)

// checkFolders refuses a new session in a folder outside of [Config.Folders].
// It resolves symbolic links.
func (rs *resources) checkFolders(params createSessionParams) error {
	for _, uri := range params.WorkingDirectories {
		if !rs.allows(filePath(uri)) {
			return fail(ahp.CodePermissionDenied, "Sessions may not run in %s: it is outside of the folders of this host", uri)
		}
	}
	return nil
}

// allows reports whether a session may run in a folder.
func (rs *resources) allows(folder string) bool {
	if len(rs.host.cfg.Folders) == 0 {
		return true
	}
	resolved, err := filepath.EvalSymlinks(folder)
	if folder == "" || err != nil {
		return false
	}
	for _, allowed := range rs.host.cfg.Folders {
		if name, err := filepath.Rel(allowed, resolved); err == nil && filepath.IsLocal(name) {
			return true
		}
	}
	return false
}

// allowsNew reports whether a new folder may be created at this path for a
// session.
func (rs *resources) allowsNew(folder string) bool {
	if _, _, err := rs.files.find(fileURI(folder)); err != nil {
		return false
	}
	for {
		folder = filepath.Dir(folder)
		if _, err := os.Lstat(folder); err == nil || folder == filepath.Dir(folder) {
			return rs.allows(folder)
		}
	}
}
