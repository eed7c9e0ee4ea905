# A pool of agents, a network and fixed addresses on the Docker engine of this machine.
#
#   evenfall plan deploy FILE --out DIR --key-file /etc/evenfall/evenfall.key
#   deploy/docker/build.sh
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR -var=key_file=KEY

terraform {
  required_version = ">= 1.5"
  required_providers {
    docker = {
      source  = "kreuzwerker/docker"
      version = "~> 3.0"
    }
  }
}

resource "docker_network" "pool" {
  name = var.name
  ipam_config {
    subnet = var.subnet
  }
}

resource "docker_container" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  name    = each.key
  image   = var.image == "" ? "evenfall:local" : var.image
  command = ["run", "agent", "--name", each.key, "--config", "/etc/evenfall/agents.toml"]
  restart = "on-failure"

  networks_advanced {
    name         = docker_network.pool.name
    ipv4_address = each.value.address
  }
  volumes {
    host_path      = abspath("${var.settings_dir}/agents.toml")
    container_path = "/etc/evenfall/agents.toml"
    read_only      = true
  }
  volumes {
    host_path      = abspath(var.key_file)
    container_path = "/etc/evenfall/evenfall.key"
    read_only      = true
  }
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
