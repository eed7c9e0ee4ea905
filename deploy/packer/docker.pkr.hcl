# The container image by Packer instead of deploy/docker/build.sh, from the same binary.
#
#   deploy/docker/build.sh && packer build deploy/packer/docker.pkr.hcl


variable "binary" {
  type    = string
  default = "target/x86_64-unknown-linux-gnu/image/evenfall"
}

source "null" "evenfall" {
  communicator = "none"
}

build {
  sources = ["source.null.evenfall"]

  provisioner "shell-local" {
    inline = [
      "mkdir -p target/packer/var/lib/evenfall && cp ${var.binary} target/packer/evenfall",
      "tar -c --owner 65534 --group 65534 -C target/packer . | docker import --change 'ENTRYPOINT [\"/evenfall\"]' --change 'USER 65534:65534' --change 'WORKDIR /var/lib/evenfall' - evenfall:packer",
    ]
  }
}
