# Installs host-agent, ahp-connect or relay for this user.
#
#   irm @LATEST@/install.ps1 | iex
#   & ([scriptblock]::Create((irm @LATEST@/install.ps1))) -Version 1.0.0 relay
#
# Nothing is installed unless the release's signature and the archive's checksum are right.
param(
    [Parameter(ValueFromRemainingArguments)] [ValidateSet('host-agent', 'ahp-connect', 'relay')] [string[]] $Programs = @('host-agent', 'ahp-connect'),
    [string] $Version,
    [string] $Dir = (Join-Path $env:LOCALAPPDATA 'Programs\ahp'),
    [string] $From = '@LATEST@'
)
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
if ($Version) { $From = '@VERSIONS@/v' + $Version.TrimStart('v') }

# The key's two coordinates, 32 bytes each, in base64. Windows reads them as a CNG blob.
$PublicPoint = '@PUBLIC_POINT@'

function Read-DerInteger([byte[]] $der, [ref] $at) {
    if ($der[$at.Value] -ne 2) { throw 'the signature is not a DER sequence of two integers' }
    $length = $der[$at.Value + 1]
    $start = $at.Value + 2
    $bytes = [byte[]] $der[$start..($start + $length - 1)]
    $at.Value = $start + $length
    while ($bytes.Length -gt 32 -and $bytes[0] -eq 0) { $bytes = [byte[]] $bytes[1..($bytes.Length - 1)] }
    if ($bytes.Length -gt 32) { throw 'an integer of the signature is too long' }
    return , ([byte[]] (@(0) * (32 - $bytes.Length) + $bytes))
}

function Test-Signature([byte[]] $data, [string] $signature) {
    $der = [Convert]::FromBase64String($signature.Trim())
    $at = 2
    $r = Read-DerInteger $der ([ref] $at)
    $s = Read-DerInteger $der ([ref] $at)
    # ECS1 and the coordinate's length begin the blob of a public P-256 key.
    $blob = [byte[]] (0x45, 0x43, 0x53, 0x31, 32, 0, 0, 0) + [Convert]::FromBase64String($PublicPoint)
    $key = [Security.Cryptography.CngKey]::Import($blob, [Security.Cryptography.CngKeyBlobFormat]::EccPublicBlob)
    $verifier = New-Object Security.Cryptography.ECDsaCng $key
    $verifier.HashAlgorithm = [Security.Cryptography.CngAlgorithm]::Sha256
    return $verifier.VerifyData($data, [byte[]] ($r + $s))
}

$processor = if ($env:PROCESSOR_ARCHITECTURE -eq 'ARM64') { 'arm64' } else { 'amd64' }
$work = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory -Path $work | Out-Null
try {
    $sums = Join-Path $work 'SHA256SUMS'
    Invoke-WebRequest -UseBasicParsing "$From/SHA256SUMS" -OutFile $sums
    Invoke-WebRequest -UseBasicParsing "$From/SHA256SUMS.sig" -OutFile "$sums.sig"
    if (-not (Test-Signature ([IO.File]::ReadAllBytes($sums)) ([IO.File]::ReadAllText("$sums.sig")))) {
        throw "the signature of $From/SHA256SUMS is wrong: the release was altered, or is not ours; nothing was installed"
    }
    $checked = foreach ($program in $Programs) {
        $lines = @(Get-Content $sums | Where-Object { $_ -match "^[0-9a-f]{64}  ${program}_[^/]*_windows_$processor\.zip$" })
        if ($lines.Count -ne 1) { throw "$From has $($lines.Count) archives of $program for windows_$processor; want one" }
        $want, $archive = $lines[0] -split '  '
        $file = Join-Path $work $archive
        Invoke-WebRequest -UseBasicParsing "$From/$archive" -OutFile $file
        if ((Get-FileHash -Algorithm SHA256 $file).Hash -ne $want) {
            throw "$From/$archive does not have the signed checksum: the download was altered or cut; nothing was installed"
        }
        Expand-Archive $file $work
        Join-Path $work (Join-Path ($archive -replace '\.zip$') "$program.exe")
    }
    New-Item -ItemType Directory -Force -Path $Dir | Out-Null
    foreach ($program in $checked) {
        $target = Join-Path $Dir (Split-Path -Leaf $program)
        # Windows lets a running program be renamed, and not be overwritten.
        if (Test-Path $target) {
            Remove-Item -Force -ErrorAction SilentlyContinue "$target.old"
            Move-Item -Force $target "$target.old"
        }
        Move-Item $program $target
        Write-Output "installed $(& $target --version) in $Dir"
    }
    $path = [Environment]::GetEnvironmentVariable('Path', 'User')
    if (($path -split ';') -notcontains $Dir) {
        [Environment]::SetEnvironmentVariable('Path', "$path;$Dir", 'User')
        Write-Output "$Dir is on your PATH in new windows"
    }
    Write-Output 'next: host-agent up https://YOUR-RELAY'
} finally {
    Remove-Item -Recurse -Force $work
}
